#!/bin/sh
# Push the notebooks in _colab as the only files of the branch `colab`, without a history.
set -eu
git config user.name "github-actions[bot]"
git config user.email "github-actions[bot]@users.noreply.github.com"
git checkout -q --orphan colab
git read-tree --empty
git --work-tree=_colab add --all
git commit -q -m "The chapters for Colab, made of ${GITHUB_SHA:-main}"
git push --force origin colab
