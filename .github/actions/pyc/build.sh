#!/bin/sh
# Build and sign; a gate of the recipe (`quality:`) that is not kept ends with exit code 13 and no artifact.
. "$(dirname "$0")/settings.sh"

# A job without its secret would sign with a key that it makes, which nobody has afterwards.
keys=${PYC_HOME:-${XDG_CONFIG_HOME:-${HOME:-}/.config}/pyc}/keys
if [ -z "${PYC_SIGNING_KEY+set}${PYC_SIGNING_KEY_FILE+set}${PYC_SIGNER+set}" ] && ! ls "$keys"/*.pem >/dev/null 2>&1; then
    echo "build.sh: no key to sign with: set PYC_SIGNING_KEY from a secret (docs/ci.md), or, for a job that only tries," \
        "run pyc keygen before" >&2
    exit 8
fi
set -- "$recipe" -o "$artifact"
if [ "${PYC_CI_DOWNLOAD:-false}" = true ]; then set -- "$@" --download; fi
pyc build "$@" --json >"$folder/build.json"
