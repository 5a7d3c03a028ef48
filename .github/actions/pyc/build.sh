#!/bin/sh
# Build and sign; a gate of the recipe (`quality:`) that is not kept ends with exit code 13 and no artifact.
. "$(dirname "$0")/settings.sh"

set -- "$recipe" -o "$artifact"
if [ "${PYC_CI_DOWNLOAD:-false}" = true ]; then set -- "$@" --download; fi
pyc build "$@" --json >"$folder/build.json"
