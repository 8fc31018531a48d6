"""The service's page: a text, the answer, and the shaded text."""

import html

from nystromformer.serve.model import ServedModel

# What a text says is put in place as text, never as HTML; the explanation is a page of its own, without scripts.
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{name}</title>
<meta name="viewport" content="width=device-width">
<style>
:root {{ color-scheme: light dark; background: Canvas }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem }}
h1 {{ font-size: clamp(1.25rem, 5vw, 2rem) }}
h1, p, td {{ overflow-wrap: anywhere }}
textarea, iframe {{ width: 100%; box-sizing: border-box; font: inherit }}
iframe {{ height: 30rem; border: 1px solid #8884 }}
button {{ font: inherit; padding: .4rem 1.2rem }}
td {{ padding: .2rem 1rem .2rem 0; border-bottom: 1px solid #8884 }}
td:last-child {{ white-space: nowrap }}
</style></head>
<body>
<h1>{name}</h1>
<p>{does}</p>
<form>
<label for="text">A text</label>
<textarea id="text" rows="10" required></textarea>
<p><button>Answer</button></p>
</form>
<p id="said" role="status"></p>
<table id="choices"></table>
<iframe id="explained" sandbox="" title="What the answer goes by" hidden></iframe>
<script>
const [text, said, choices] = ["text", "said", "choices"].map((id) => document.getElementById(id));
async function ask(path) {{
  const body = JSON.stringify({{text: text.value}});
  const answer = await fetch(path, {{method: "POST", headers: {{"content-type": "application/json"}}, body}});
  if (!answer.ok) throw Object.assign(new Error((await answer.json()).detail), {{status: answer.status}});
  return answer;
}}
document.querySelector("form").addEventListener("submit", async (event) => {{
  event.preventDefault();
  said.textContent = "…";
  choices.replaceChildren();
  // A new frame: Chromium leaves one that was hidden meanwhile empty.
  const old = document.getElementById("explained"), frame = old.cloneNode();
  frame.hidden = true;
  old.replaceWith(frame);
  try {{
    const {{answers: [answer], seconds}} = await (await ask("predict")).json();
    const predicted = answer.predicted ? `Predicted: ${{answer.predicted.join(", ") || "none"}}. ` : "";
    const cut = answer.cut ? " (the rest was cut off)" : "";
    said.textContent = `${{predicted}}${{answer.tokens}} tokens${{cut}}, ${{seconds.toFixed(2)}} s`;
    for (const choice of answer.choices) {{
      const row = choices.insertRow();
      row.insertCell().textContent = choice.label;
      row.insertCell().textContent = choice.value?.toPrecision(4) ?? `${{(100 * choice.probability).toFixed(1)}} %`;
    }}
    frame.srcdoc = await (await ask("explain")).text();
    frame.hidden = false;
  }} catch (error) {{
    // Not every model has an explanation.
    if (error.status !== 404) said.textContent += ` ${{error.message}}`;
  }}
}});
</script>
</body></html>
"""


def page(model: ServedModel) -> str:
    """The page of a model's service."""
    return _PAGE.format(name=html.escape(model.name), does=html.escape(model.does))
