#!/usr/bin/env bash
# Installs the Debian or Ubuntu packages of the groups given (scripts/packages.txt), those that are missing.
#
#   scripts/setup.sh build test
#
# Silent when nothing is missing. Needs root or sudo otherwise.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

die() {
  echo "setup: $*" >&2
  exit 1
}

wanted=()
for group in "${@:-build}"; do
  line=$(grep -E "^$group[[:space:]]" "$here/packages.txt") || die "no group '$group' in scripts/packages.txt"
  read -r -a words <<<"$line"
  wanted+=("${words[@]:1}")
done

command -v dpkg-query >/dev/null && command -v apt-get >/dev/null ||
  die "this system has no apt; install the equivalents of: ${wanted[*]}"

missing=()
for package in "${wanted[@]}"; do
  state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$state" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || die "not root and no sudo; as root, run: apt-get install ${missing[*]}"
  as_root=(sudo)
fi

echo "setup: installing ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 "$@" </dev/null >>"$log" 2>&1
}
if ! { apt update && apt install --no-install-recommends "${missing[@]}"; }; then
  tail -n 20 "$log" >&2
  die "apt-get failed; the last lines of its output are above"
fi
