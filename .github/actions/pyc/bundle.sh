#!/bin/sh
# The artifact with all that it needs as an OCI image layout, and with PYC_CI_REGISTRY to a registry:
# where skopeo copies to, without a tag, such as docker://registry.example/models/demo.
. "$(dirname "$0")/settings.sh"

tag=${PYC_CI_TAG:-latest}
layout=$folder/oci
if [ -n "${PYC_CI_REGISTRY:-}" ] && ! command -v skopeo >/dev/null; then
    echo "PYC_CI_REGISTRY is $PYC_CI_REGISTRY and skopeo is not installed: install it, or leave the registry out" >&2
    exit 1
fi
rm -rf "$layout"
set -- "$artifact" -o "$layout" --format oci --tag "$tag"
if [ "${PYC_CI_WHEELS:-true}" != true ]; then set -- "$@" --no-wheels; fi
pyc bundle "$@"
result bundle "$layout"
if [ -n "${PYC_CI_REGISTRY:-}" ]; then
    skopeo copy "oci:$layout:$tag" "$PYC_CI_REGISTRY:$tag"
    result image "$PYC_CI_REGISTRY:$tag"
fi
