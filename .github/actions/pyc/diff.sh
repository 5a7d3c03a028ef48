#!/bin/sh
# What is different from PYC_CI_LAST_RELEASE, an artifact: on the page of the run, and in GitLab as a note of the
# merge request, which takes a token with the scope api in PYC_CI_NOTE_TOKEN.
. "$(dirname "$0")/settings.sh"

last=${PYC_CI_LAST_RELEASE:-}
if [ -z "$last" ]; then
    echo 'nothing to compare with: PYC_CI_LAST_RELEASE'
    exit
fi
pyc diff "$last" "$artifact" --markdown >"$folder/diff.md"
summary <"$folder/diff.md"
if [ -n "${CI_MERGE_REQUEST_IID:-}" ] && [ -n "${PYC_CI_NOTE_TOKEN:-}" ]; then
    printf 'PRIVATE-TOKEN: %s\n' "$PYC_CI_NOTE_TOKEN" |  # not in the arguments, which others can list
        curl --fail --silent --show-error --output /dev/null --header @- --data-urlencode "body@$folder/diff.md" \
            "$CI_API_V4_URL/projects/$CI_PROJECT_ID/merge_requests/$CI_MERGE_REQUEST_IID/notes"
fi
