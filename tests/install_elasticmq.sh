#!/usr/bin/env bash
# Fetches ElasticMQ, an SQS-compatible server, from Maven Central once into the cache; tests start it from there.
# 37 MB in 39 jars, each held to the checksum in tests/stand_ins/elasticmq/SHA256SUMS. Needs Java 11 to run.
#
# A new version: change it in pom.xml, delete SHA256SUMS, run this, and commit the SHA256SUMS that it writes.
set -euo pipefail
cd "$(dirname "$0")/stand_ins/elasticmq"

cache="${XDG_CACHE_HOME:-$HOME/.cache}/redrive"
sums="$PWD/SHA256SUMS"

target() {
    echo "$cache/elasticmq-$(sha256sum <"$sums" | cut -c1-12)"
}

[ ! -e "$sums" ] || [ ! -d "$(target)" ] || exit 0

skips() {
    echo "Not installed: ElasticMQ ($1). Tests on it will skip, or fail where REDRIVE_REQUIRE_BROKERS=all."
    exit 0
}

command -v mvn >/dev/null || skips "no Maven here (Debian: maven)"
command -v java >/dev/null || skips "no Java here"

echo "Fetching ElasticMQ (37 MB, once)"
mkdir -p "$cache"
work="$(mktemp -d "$cache/elasticmq.XXXXXX")"
trap 'rm -rf "$work"' EXIT
# A local repository of its own, so that the jars are not kept twice; -C: what Central's own checksum denies is refused.
mvn -q -B -C -f pom.xml -Dmaven.repo.local="$work/m2" dependency:copy-dependencies -DincludeScope=runtime \
    -DoutputDirectory="$work/lib" || skips "it could not be fetched"
[ -e "$sums" ] || (cd "$work/lib" && sha256sum ./*.jar | sed 's|\./||') >"$sums"
(cd "$work/lib" && sha256sum --quiet --strict -c "$sums" && [ "$(ls | wc -l)" -eq "$(wc -l <"$sums")" ]) || {
    echo "What came is not what $sums says. Nothing was installed." >&2
    exit 1
}
mv "$work/lib" "$(target)"
