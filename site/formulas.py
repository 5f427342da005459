"""Formulas, rendered while the site is built: a Sphinx extension that asks KaTeX, running in Node."""

import functools
import json
import subprocess
from pathlib import Path

import slim
from docutils import nodes

HERE = Path(__file__).resolve().parent
STYLE = HERE / "node_modules/katex/dist/katex.min.css"


class Katex:
    """One Node process for a whole build."""

    def __init__(self):
        self.process = None

    @functools.cache                                        # noqa: B019 (one object, as long as the build)
    def render(self, tex, display):
        if self.process is None:
            self.process = subprocess.Popen(
                ["node", str(HERE / "katex_lines.cjs")], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                text=True, encoding="utf-8", cwd=HERE)
        self.process.stdin.write(json.dumps({"tex": tex, "display": display}) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        if "error" in answer:
            raise ValueError(f"KaTeX refuses {tex!r}: {answer['error']}")
        return slim.formula(answer["html"], slim.katex(STYLE))

    def close(self, *_):
        if self.process:
            self.process.stdin.close()
            self.process.wait()


def setup(app):
    katex = Katex()

    def inline(self, node):
        bracket = "(" * self.body[-1].endswith("(")         # no line may end between it and the formula
        self.body[-1] = self.body[-1].removesuffix(bracket)
        self.body.append(f'<span class="math">{bracket}{katex.render(node.astext(), False)}</span>')
        raise nodes.SkipNode

    def block(self, node):
        tex = node.astext()
        self.body.append(f'<div class="math" tabindex="0" role="group" aria-label="formula">'
                         f"{katex.render(tex, True)}</div>\n")
        raise nodes.SkipNode

    app.add_html_math_renderer("katex", (inline, None), (block, None))
    app.connect("build-finished", katex.close)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": False}
