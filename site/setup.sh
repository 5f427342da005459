# Makes .venv-site, where the site is built: Sphinx from PyPI, KaTeX and fonts from npm. Runs once.
set -eu
cd "$(dirname "$0")/.."

python=
for name in ${PYTHON:-python3.14 python3.13 python3.12 python3.11 python3}; do
    check='import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))'
    if "$name" -c "$check" >/dev/null 2>&1; then
        python=$name
        break
    fi
done
if [ -z "$python" ]; then
    echo "The site needs Python 3.11 to 3.14 with venv; name one: make site PYTHON=/path/to/python3" >&2
    exit 1
fi
if ! command -v npm >/dev/null; then
    echo "The site's formulas are rendered by Node.js: install node 18 or newer with npm, then make site." >&2
    exit 1
fi

echo "Setting up .venv-site ..."
rm -rf .venv-site
"$python" -m venv .venv-site
.venv-site/bin/python -m pip install -q --disable-pip-version-check \
    -r site/requirements.txt -c site/requirements.lock
npm install --prefix site --no-package-lock --ignore-scripts --no-audit --no-fund --loglevel=error
touch .venv-site/.ready
