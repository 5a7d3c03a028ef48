#!/bin/sh
# Bills of materials, and provenance in a signed envelope.
. "$(dirname "$0")/settings.sh"

pyc attest "$artifact" --format cyclonedx -o "$folder/model.cdx.json" --force
pyc attest "$artifact" --format spdx -o "$folder/model.spdx.json" --force
pyc attest "$artifact" --format slsa --sign -o "$folder/model.intoto.json" --force
