#!/usr/bin/env bash
# Resolves requirements/cpu.txt, then gpu.txt with the same versions: they differ in fbgemm and the CUDA libraries only.
set -euo pipefail
cd "$(dirname "$0")/.."
uv=${1:-uv}
options=(--quiet --no-header --no-annotate --no-emit-find-links --no-emit-index-url --python-version 3.11 --all-extras)

sed -i '/^torch==/d' requirements/cpu.txt # the plain version of the last lock would be preferred, and brings the CUDA libraries
UV_FIND_LINKS="${UV_FIND_LINKS:-${PIP_FIND_LINKS:-}}" "$uv" pip compile "${options[@]}" pyproject.toml requirements/cpu.in -o requirements/cpu.txt
sed -i 's/^\(torch==[0-9.]*\)+cpu$/\1/' requirements/cpu.txt # the plain version names the same release everywhere

# torchrec's own dependency on fbgemm-gpu is right here, so the override of pyproject.toml is left out.
constraints=$(mktemp)
trap 'rm -f "$constraints"' EXIT
grep -v '^fbgemm' requirements/cpu.txt > "$constraints"
env -u UV_FIND_LINKS -u PIP_FIND_LINKS "$uv" pip compile "${options[@]}" --no-config -c "$constraints" pyproject.toml requirements/gpu.in -o requirements/gpu.txt
