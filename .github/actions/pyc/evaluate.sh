#!/bin/sh
# Score PYC_CI_EVAL_TEXT, beside PYC_CI_EVAL_REFERENCE where that is set. Limits belong into the recipe: `quality:`.
. "$(dirname "$0")/settings.sh"

if [ -z "${PYC_CI_EVAL_TEXT:-}" ]; then
    echo 'no text to evaluate: PYC_CI_EVAL_TEXT'
    exit
fi
set -- "$artifact" --text "$PYC_CI_EVAL_TEXT"
if [ -n "${PYC_CI_EVAL_REFERENCE:-}" ]; then set -- "$@" --reference "$PYC_CI_EVAL_REFERENCE"; fi
if [ -n "${PYC_CI_EVAL_TOKENS:-}" ]; then set -- "$@" --tokens "$PYC_CI_EVAL_TOKENS"; fi
pyc eval "$@" --no-speed --html "$folder/eval.html" --force >"$folder/eval.txt"
fenced <"$folder/eval.txt" | summary
