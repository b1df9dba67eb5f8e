# Sourced by test.sh. Makes available what some tests need beyond Go and tells them by environment variables:
#   WARMROUTE_PYTHON   a Python that has the official openai package
# A prerequisite that can't be had is listed; under CI=true it fails the run.

missing() {
	echo "prerequisite missing: $1"
	if [ "${CI:-}" = true ]; then exit 1; fi
}

install_python_sdk() {
	local venv=.tools/python
	if [ ! -x "$venv/bin/python" ] || ! "$venv/bin/python" -c 'import openai' 2>/dev/null; then
		command -v python3 >/dev/null || { missing "python3, for the official Python SDK"; return; }
		if ! python3 -m venv "$venv" >.tools/pip.log 2>&1 || ! "$venv/bin/pip" install --quiet --disable-pip-version-check 'openai>=3,<4' >>.tools/pip.log 2>&1; then
			tail -3 .tools/pip.log
			missing "the Python package openai (see .tools/pip.log)"
			return
		fi
	fi
	WARMROUTE_PYTHON=$PWD/$venv/bin/python
	export WARMROUTE_PYTHON
}

install_python_sdk
