#!/bin/sh
# Install pyc out of the checkout that this script is in, with the versions that it was tested with.
set -eu
root=$(cd "$(dirname "$0")/../../.." && pwd)
python3 -m pip install --quiet --disable-pip-version-check -c "$root/constraints.txt" "${root}[${PYC_CI_EXTRAS:-compiler}]"
pyc --version
