#!/bin/sh
# Every byte, and that PYC_CI_PUBLIC_KEY signed; without one, the key that this job signs with. Later steps trust it.
. "$(dirname "$0")/settings.sh"

key=${PYC_CI_PUBLIC_KEY:-}
if [ -z "$key" ]; then
    key=$folder/signer.pub
    pyc keygen --public >"$key"
fi
code=0
pyc verify "$artifact" --key "$key" --json >"$folder/verify.json" || code=$?
if [ "$code" != 0 ]; then exit "$code"; fi
pyc trust add "$key"
digest=$(sha256sum "$artifact")
result artifact "$artifact"
result sha256 "${digest%% *}"
{
    echo '### pyc'
    pyc inspect "$artifact" | fenced
} | summary
