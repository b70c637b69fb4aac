#!/usr/bin/env bash
# Install the built wheels, with no index, into a clean environment and check run files there; the
# teaching plugin comes with its declared dependencies alone, and is run by tests/test_teaching_plugin.py.
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
.venv/bin/python -m pip wheel --disable-pip-version-check --quiet --no-deps --no-build-isolation -w "$wheelhouse" ./examples/plugins/workshop
.venv/bin/python -m pip download --disable-pip-version-check --quiet -c constraints.txt -d "$wheelhouse" build/wheels/*.whl
python3 -m venv build/clean
# What is imported is compiled as it is: a small part of torch and transformers.
build/clean/bin/python -m pip install --disable-pip-version-check --quiet --no-compile --no-index --find-links "$wheelhouse" "${names[@]}" composer-plugin-workshop
cd build
rm -rf reference
clean/bin/composer-run --plugins local,code,drills,hidden-tests,hf,torch-sampler,policy,report check ../examples/quickstart/run.toml
clean/bin/composer-run check ../examples/plugins/workshop/run.toml
clean/bin/composer-run reference reference
clean/bin/composer-run check reference/composer.toml
clean/bin/composer-run check reference/cluster.toml
clean/bin/composer-run plugins
