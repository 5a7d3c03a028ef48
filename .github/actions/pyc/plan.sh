#!/bin/sh
# What a build would do, and most of what it would refuse, in a second.
. "$(dirname "$0")/settings.sh"

pyc plan "$recipe" -o "$artifact" --json >"$folder/plan.json"
pyc plan "$recipe" -o "$artifact"
