#!/usr/bin/env bash
# Fetches Apache Pulsar's server from Maven Central once into the cache; tests start it from there.
# 245 MB to download, 253 MB unpacked. 4.0 runs on Java 17; of 3.0 Central holds no server distribution.
set -euo pipefail

version=4.0.8
cache="${XDG_CACHE_HOME:-$HOME/.cache}/redrive"
target="$cache/apache-pulsar-$version"
[ -x "$target/bin/pulsar" ] && exit 0

skips() {
    echo "Not installed: Apache Pulsar ($1). Tests on it will skip, or fail where REDRIVE_REQUIRE_BROKERS=all."
    exit 0
}

command -v mvn >/dev/null || skips "no Maven here (Debian: maven)"
command -v java >/dev/null || skips "no Java here"

echo "Fetching Apache Pulsar $version (245 MB, once)"
mkdir -p "$cache"
work="$(mktemp -d "$cache/pulsar.XXXXXX")"
trap 'rm -rf "$work"' EXIT
# A local repository of its own, so that the archive is not kept twice.
(cd "$work" && mvn -q -B -Dmaven.repo.local="$work/m2" dependency:copy \
    -Dartifact="org.apache.pulsar:pulsar-server-distribution:$version:tar.gz:bin" \
    -DoutputDirectory="$work") || skips "it could not be fetched"
tar -xzf "$work"/pulsar-server-distribution-*.tar.gz -C "$work"
mv "$work/apache-pulsar-$version" "$target"
