#!/usr/bin/env bash
# Builds Google's pstest (the fake of Pub/Sub in its Go library) once into the cache; tests start it from there.
# Needs Go 1.21 or later, which fetches by itself whatever newer toolchain the library wants.
set -euo pipefail
cd "$(dirname "$0")/stand_ins/pstest"

cache="${XDG_CACHE_HOME:-$HOME/.cache}/redrive"
target="$cache/pstest-$(cat main.go go.mod go.sum | sha256sum | cut -c1-12)"
[ -x "$target" ] && exit 0

skips() {
    echo "Not built: pstest ($1). Tests on it will skip, or fail where REDRIVE_REQUIRE_BROKERS=all."
    exit 0
}

go="$(command -v go || true)"
[ -n "$go" ] || { [ -x /usr/local/go/bin/go ] && go=/usr/local/go/bin/go; } || skips "no Go here"
minor="$("$go" version | sed -n 's/.*go1\.\([0-9]*\).*/\1/p')"
[ "${minor:-0}" -ge 21 ] || skips "Go 1.21 or later is needed, $("$go" version) is here"

echo "Building pstest (downloads its Go modules, once)"
mkdir -p "$cache"
GOTOOLCHAIN="${GOTOOLCHAIN:-auto}" GOFLAGS="-mod=readonly -buildvcs=false" "$go" build -o "$target.new" . ||
    skips "go build failed"
mv "$target.new" "$target"
