#!/bin/sh
# The artifact with all that it needs as an OCI image layout, and with PYC_CI_REGISTRY to a registry, which is named without a tag:
# oci://registry.example/models/demo, by pyc push, or where skopeo copies to, such as docker://registry.example/models/demo.
. "$(dirname "$0")/settings.sh"

tag=${PYC_CI_TAG:-latest}
layout=$folder/oci
case ${PYC_CI_REGISTRY:-} in
    '' | oci://*) ;;
    *)
        if ! command -v skopeo >/dev/null; then
            echo "PYC_CI_REGISTRY is $PYC_CI_REGISTRY and skopeo is not installed: install it, or give oci://host/repository" >&2
            exit 1
        fi
        ;;
esac
rm -rf "$layout"
set -- "$artifact" -o "$layout" --format oci --tag "$tag"
if [ "${PYC_CI_WHEELS:-true}" != true ]; then set -- "$@" --no-wheels; fi
pyc bundle "$@"
result bundle "$layout"
case ${PYC_CI_REGISTRY:-} in
    '') ;;
    oci://*)
        pyc push "$layout" "$PYC_CI_REGISTRY:$tag"
        result image "$PYC_CI_REGISTRY:$tag"
        ;;
    *)
        skopeo copy "oci:$layout:$tag" "$PYC_CI_REGISTRY:$tag"
        result image "$PYC_CI_REGISTRY:$tag"
        ;;
esac
