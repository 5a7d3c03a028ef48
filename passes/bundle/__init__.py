"""An artifact with all that it needs to run where there is no network: a folder, a tar, or an OCI image layout."""
