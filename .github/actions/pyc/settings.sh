# shellcheck shell=sh disable=SC2034
# What the steps share: their settings, which are variables PYC_CI_*, and where results go. `.` it.
# docs/ci.md has the list. Nothing here knows a key: pyc reads $PYC_SIGNING_KEY itself.
set -eu
recipe=${PYC_CI_RECIPE:-model.yaml}
artifact=${PYC_CI_ARTIFACT:-model.pyca}
folder=${PYC_CI_FOLDER:-pyc-ci}
mkdir -p "$folder"

# result NAME VALUE: an output of the step in GitHub, a line of a dotenv report elsewhere.
result() {
    printf '%s=%s\n' "$1" "$2" >>"${GITHUB_OUTPUT:-$folder/results.env}"
}

# Standard input, as markdown, to the page of the run; to its log where there is no such page.
summary() {
    if [ -n "${GITHUB_STEP_SUMMARY:-}" ]; then cat >>"$GITHUB_STEP_SUMMARY"; else cat; fi
}

# Standard input as a block of plain text.
fenced() {
    printf '\n```\n'
    cat
    printf '```\n'
}
