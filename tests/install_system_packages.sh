#!/usr/bin/env bash
# Installs what tests need from the system: PostgreSQL's and RabbitMQ's server programs (tests start their own on free
# ports), docker-compose (which checks docker-compose.yml) and Chromium (which looks at the review page, with fonts to
# see by). Only what is missing, and only where it may.
set -euo pipefail

wanted=()
command -v postgres >/dev/null || compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null || wanted+=(postgresql)
compgen -G '/usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-server' >/dev/null || wanted+=(rabbitmq-server)
command -v docker-compose >/dev/null || wanted+=(docker-compose)
command -v chromium >/dev/null || wanted+=(chromium fonts-dejavu-core)
if [ "${#wanted[@]}" -eq 0 ]; then
    exit 0
fi

skips() {
    echo "Not installed: ${wanted[*]} ($1)."
    echo "Tests that need them will skip, or fail where REDRIVE_REQUIRE_BROKERS=all."
    exit 0
}

as_root=()
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null && sudo -n true 2>/dev/null || skips "neither root nor sudo without a password"
    as_root=(sudo -n)
fi
command -v apt-get >/dev/null || skips "no apt-get here"

echo "Installing ${wanted[*]}"
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get update -qq || skips "apt-get update failed"
for package in "${wanted[@]}"; do
    # One at a time: a distribution without docker-compose should still get PostgreSQL.
    "${as_root[@]}" apt-get install -y -qq --no-install-recommends "$package" >/dev/null ||
        echo "Not installed: $package; tests that need it will skip or fail."
done
case " ${wanted[*]} " in
*" rabbitmq-server "*)
    # The package starts a node of its own on every interface; nobody here needs it.
    "${as_root[@]}" service rabbitmq-server stop >/dev/null 2>&1 || true
    ;;
esac
