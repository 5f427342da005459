# Finds a Python for .venv ($PYTHON, or the newest that works) and hands over to setup_env.py.
set -u
if [ -n "${PYTHON:-}" ]; then
    set -- "$PYTHON"
else
    set -- python3.14 python3.13 python3.12 python3.11 python3
fi

for modules in 'sys, venv, ensurepip' 'sys'; do
    for python in "$@"; do
        check="import $modules; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))"
        if "$python" -c "$check" >/dev/null 2>&1; then
            exec "$python" scripts/setup_env.py
        fi
    done
done

echo "The course needs Python 3.11 to 3.14 and found none among: $*." \
    "Install one, or name it: make lab PYTHON=/path/to/python3" >&2
exit 1
