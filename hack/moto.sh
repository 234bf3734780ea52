#!/usr/bin/env bash
# Installs moto's server, an EC2 for tests, in the versions that hack/tools/moto pins, and prints the path of the executable. It is
# kept in ${NODEWRIGHT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/nodewright}/moto, in a virtual environment of Python 3.10 or newer; the
# installation takes a minute.
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=lib-go.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib-go.sh"
# shellcheck source-path=SCRIPTDIR source=lib-python.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib-python.sh"

takes_no_arguments "$@"

environment=$(python_environment moto)
printf '%s\n' "$environment/bin/moto_server"
