#!/usr/bin/env bash
# Install the built wheels, with no index, into a clean environment and check the quickstart's run file there.
set -euo pipefail

wheelhouse=build/wheelhouse
rm -rf build/clean "$wheelhouse"
mkdir -p "$wheelhouse"
cp build/wheels/*.whl "$wheelhouse/"
names=()
for wheel in build/wheels/*.whl; do
    name=$(basename "$wheel")
    names+=("${name%%-*}")
done
.venv/bin/python -m pip download --disable-pip-version-check --quiet -c constraints.txt -d "$wheelhouse" build/wheels/*.whl
python3 -m venv build/clean
build/clean/bin/python -m pip install --disable-pip-version-check --quiet --no-index --find-links "$wheelhouse" "${names[@]}"
cd build
clean/bin/composer-run --plugins local,code,drills,hidden-tests,hf,torch-sampler,policy,report check ../examples/quickstart/run.toml
clean/bin/composer-run plugins
