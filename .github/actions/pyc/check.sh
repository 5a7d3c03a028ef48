#!/bin/sh
# Is the artifact what the recipe builds? The result is up_to_date. With PYC_CI_ONLY_CHECK=true no is a failure.
. "$(dirname "$0")/settings.sh"

if [ -z "${GITHUB_OUTPUT:-}" ]; then : >"$folder/results.env"; fi  # of a run before
set -- "$recipe" -o "$artifact"
if [ "${PYC_CI_DOWNLOAD:-false}" = true ]; then set -- "$@" --download; fi
code=0
pyc build "$@" --check >"$folder/check.txt" || code=$?
cat "$folder/check.txt"
case $code in
    0) result up_to_date true ;;
    1) result up_to_date false ;;
    *) exit "$code" ;;
esac
if [ "${PYC_CI_ONLY_CHECK:-false}" = true ]; then exit "$code"; fi
