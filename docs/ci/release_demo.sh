#!/usr/bin/env bash
# From a build to production and back, with each step's failure tried once: release_demo.sh FOLDER
#
# Builds the demo model behind a quality gate, signs it twice, bundles it, pushes it to a registry on this machine, pulls and runs it
# as a machine does that has a key store of its own and no compiler, revokes, rolls back, rotates keys. What has to fail is checked
# for its exit code, for one line that says why, and for what it left: the artifact and the keys of production stay as they were.
#
# $PYC is pyc where it is built (default: of the path), $PYC_PRODUCTION where it runs (default: $PYC, kept from its compilers). The
# registry is Debian's docker-registry where it is installed, and else the one of the tests.
set -euo pipefail
sources=$(cd "$(dirname "$0")/../.." && pwd)
folder=$1
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
cd "$folder"
pyc=${PYC:-$(command -v pyc)}
python=$(dirname "$pyc")/python
mkdir -p build production
export PYC_CHUNK_CACHE=off NO_COLOR=1
steps=0 failures=0 running=()
trap 'for process in "${running[@]}"; do kill "$process" 2>/dev/null || true; done' EXIT

build() { (cd build && PYC_HOME=$folder/build-home exec "$pyc" "$@"); }
# A store as it is when a last day has passed.
passed() { sed -i 's/expires=2099-01-01/expires=2020-01-01/' "$1"/trusted/*.pub; }
production() {
    cd production
    if [ -n "${PYC_PRODUCTION:-}" ]; then PYC_HOME=$folder/production-home exec "$PYC_PRODUCTION" "$@"; fi
    PYC_HOME=$folder/production-home PATH=/usr/bin:/bin exec "$python" -c '
import sys
sys.modules.update(dict.fromkeys(("tvm", "ziglang", "torch", "transformers")))
sys.argv[0] = "pyc"
from pyc.process import entry
entry()' "$@"
}

says() { printf '%s\n' "$*"; }
state() { (cd "$folder/production" && find . -type f ! -name '.*.part' -exec sha256sum {} +; cd ../production-home && find . -type f -exec sha256sum {} +) | sort; }
stop() { says "FAILED: $1"; cat out err; exit 1; }

# ok TEXT COMMAND...: it succeeds and says TEXT.
ok() {
    local text=$1 code=0
    ("${@:2}") >out 2>err </dev/null || code=$?
    [ "$code" = 0 ] || stop "${*:2}: exit code $code"
    grep -qF -- "$text" out err || stop "${*:2}: does not say: $text"
    steps=$((steps + 1))
}

# fails CODE TEXT COMMAND...: it ends with CODE, says TEXT in one line and no traceback, and production is as it was.
fails() {
    local wanted=$1 text=$2 code=0 before
    before=$(state)
    ("${@:3}") >out 2>err </dev/null || code=$?
    [ "$code" = "$wanted" ] || stop "${*:3}: exit code $code, expected $wanted"
    grep -qE -- "$text" err || stop "${*:3}: does not say: $text"
    [ "$(grep -c 'error:' err)" = 1 ] || stop "${*:3}: says more than one line"
    ! grep -qE 'Traceback|internal error|hunter2' out err || stop "${*:3}: a traceback, or a password"
    [ "$before" = "$(state)" ] || stop "${*:3}: changed what production has"
    failures=$((failures + 1))
    says "  refused with $wanted: $(cut -c1-150 err | grep 'error:')"
}

# full COMMAND...: run where a disk has 3 MB left, or a file may not be larger.
full() {
    if unshare -rm true 2>/dev/null; then
        # shellcheck disable=SC2016
        export -f build production && export folder pyc python
        unshare -rm bash -ec 'mkdir -p "$folder/full" && mount -t tmpfs -o size=3m none "$folder/full" && "$@"' - "$@"
    else
        mkdir -p "$folder/full" && ulimit -f 3000 && trap '' XFSZ && "$@"
    fi
}

free_port() { "$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
listens() { for _ in $(seq 100); do if (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; then return; fi; sleep 0.1; done; stop "nothing listens"; }
# A network at $proxy that cuts the first connection after 400 kB and each later one after 9.
bad_network() {
    proxy=$(free_port)
    "$python" "$sources/tests/plugins/cutting_proxy.py" "$proxy" "$port" 400000 1000000 9000 &
    running+=($!)
    listens "$proxy"
}
serve() {
    if command -v docker-registry >/dev/null; then
        printf 'version: 0.1\nlog: {level: error, accesslog: {disabled: true}}\nstorage: {filesystem: {rootdirectory: %s}}\nhttp: {addr: "127.0.0.1:%s"}\n' \
            "$folder/registry" "$port" >registry.yml
        docker-registry serve registry.yml >registry.log 2>&1 &
    else
        "$python" "$sources/tests/plugins/registry_double.py" "$port" >registry.log 2>&1 &
    fi
    running+=($!)
    listens "$port"
}

port=$(free_port)
image=oci://127.0.0.1:$port/models/demo
cat >build/model.yaml <<END
model: $sources/models/demo/checkpoint
quantize: {scheme: int8}
shapes: {context: 1024, tokens: [1, 16, 128]}
targets: [{isa: [x86-64]}]
quality: {text: $sources/models/demo/train.py, max_kl: 0.01, tokens: 512}
artifact: {path: demo.pyca, key: release}
END
mkdir -p production-home

says '1. keys, and what production asks for: two signatures'
build keygen --name release >release.pub
build keygen --name qa >qa.pub
ok trusted production trust add ../release.pub
ok trusted production trust add ../qa.pub
printf '[[rule]]\nthreshold = 2\n' >production-home/policy.toml

says '2. build, behind a gate'
fails 13 'no artifact is written' build build model.yaml --set quality.max_kl=0.0000001
fails 8 'are free|File too large' full build build model.yaml -o ../full/demo.pyca --set quality=null
[ ! -e build/demo.pyca ] || stop 'a build that failed left an artifact'
ok sha256 build build model.yaml
cp build/demo.pyca build/v1.pyca

says '3. push and pull'
fails 14 'is the registry there' build push v1.pyca "$image:v1"
serve
ok sha256: build push v1.pyca "$image:v1"
fails 12 '1 of the 2 signatures' production pull "$image:v1"
build keygen --name late >late.pub 2>/dev/null
build trust add --expires 2099-01-01 ../late.pub >/dev/null
passed build-home
fails 8 'expired' build sign v1.pyca --name late
ok signed build sign v1.pyca --name qa
ok sha256: build push v1.pyca "$image:v1"
first=$(head -1 out)
fails 8 'bytes are to be written|File too large' full production pull "$image:v1" -o ../full/demo.pyca
fails 10 'no such file' production pull "$image@sha256:$(printf %064d 0)"
ok 'signed by trusted keys' production pull "$image:v1" -o demo.pyca

says '4. run, the same where it was built and where it runs'
build_text=$(build run demo.pyca --prompt 'def main(' --max-tokens 12 --seed 1 --trust ../release.pub)
ok "$build_text" production run demo.pyca --prompt 'def main(' --max-tokens 12 --seed 1
ok "$build_text" production run "$image:v1" --prompt 'def main(' --max-tokens 12 --seed 1

says '5. the next version, over a bad network'
ok sha256 build build model.yaml --set quantize.scheme=int4-g32 --set quality.max_kl=1
cp build/demo.pyca build/v2.pyca
ok signed build sign v2.pyca --name qa
ok ' bytes' build bundle v2.pyca -o layout --format oci --no-wheels --tag v2
bad_network
fails 14 'gave up after' build push layout "${image/:$port/:$proxy}:v2"
fails 10 'no such file' production pull "$image:v2"
ok sha256: build push layout "$image:v2"
bad_network
fails 14 'gave up after' production pull "${image/:$port/:$proxy}:v2" -o demo.pyca
[ -e production/.demo.pyca.part ] || stop 'what was fetched is gone'
ok 'signed by trusted keys' production pull "$image:v2" -o demo.pyca
ok '' production run demo.pyca --prompt 'def main(' --max-tokens 12 --seed 1

says '6. it is bad: revoked, and back to the first by its digest'
ok revoked production trust revoke demo.pyca --reason 'wrong tokenizer'
fails 12 'revoked' production run demo.pyca --prompt x
fails 12 'revoked' production pull "$image:v2" -o demo.pyca
ok 'signed by trusted keys' production pull "$first" -o demo.pyca
ok "$build_text" production run demo.pyca --prompt 'def main(' --max-tokens 12 --seed 1

says '7. a key leaked: another takes its place'
fingerprint=$(production trust list | awk '/release$/ {print $1}')
build keygen --name release-2 >release-2.pub 2>/dev/null
ok '' build trust announce -o ../rotation.update --name qa --trust ../release-2.pub --revoke "$fingerprint" --reason leaked
sed 's/leaked/stolen/' rotation.update >altered.update
fails 8 'altered' production trust apply ../altered.update
ok '' production trust apply ../rotation.update
fails 12 'revoked' production run demo.pyca --prompt x
ok signed build sign v1.pyca --name release-2
ok sha256: build push v1.pyca "$image:v1" --trust ../release-2.pub
ok 'signed by trusted keys' production pull "$image:v1" -o demo.pyca
ok "$build_text" production run demo.pyca --prompt 'def main(' --max-tokens 12 --seed 1

says '8. a key expires, a byte changes'
ok '' production trust add --expires 2099-01-01 ../qa.pub
passed production-home
fails 12 'expired' production run demo.pyca --prompt x
fails 8 'expired on 2020-01-01, as it is trusted here' production trust add ../qa.pub
ok '' production trust add --expires 2099-01-01 ../qa.pub
cp production/demo.pyca altered.pyca
cp production/demo.pyca.sig altered.pyca.sig
printf x | dd of=altered.pyca bs=1 seek=$(($(stat -c %s altered.pyca) - 20000)) conv=notrunc status=none
fails 8 'altered' production run ../altered.pyca --prompt x
ok "$build_text" production run demo.pyca --prompt 'def main(' --max-tokens 12 --seed 1

says "release demo: $steps steps, $failures failures, in $SECONDS s"
