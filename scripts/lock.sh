# Solves the requirements of readers, and of what tests install on top, anew into requirements.lock, with uv.
set -eu
solved=$(uv pip compile --quiet --universal --python-version 3.11 --no-header --no-annotate \
    --no-emit-package torch --no-emit-package triton --no-emit-index-url --upgrade \
    requirements.txt tests/browser/requirements.txt tests/types/requirements.txt \
    tests/integrations/requirements.txt)
cat > requirements.lock <<END
# Versions that fit together on Python 3.11–3.14, Linux and macOS: requirements.txt,
# tests/browser/requirements.txt, tests/types/requirements.txt and tests/integrations/requirements.txt,
# solved by \`make lock\` (uv pip compile --universal --python-version 3.11 --no-header --no-annotate
# --no-emit-package torch --no-emit-package triton).
# Set-up gives them to pip as constraints: what nothing asks for, such as CUDA's parts beside a CPU
# build of torch, is not installed.
$solved
END
