"""The service's page: a text, the answer, and the shaded text."""

import html

from nystromformer.serve.answers import Model

# What a text says is put in place as text, never as HTML; the explanation is a page of its own, without scripts.
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{name}</title>
<meta name="viewport" content="width=device-width">
<style>
:root {{ color-scheme: light dark; background: #ffffff; color: #1a1a1a; }}
@media (prefers-color-scheme: dark) {{ :root {{ background: #1a1a1a; color: #e6e6e6; }} }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }}
h1, p, td {{ overflow-wrap: anywhere; }}
h1 {{ font-size: clamp(1.25rem, 5vw, 2rem); line-height: 1.2; }}
textarea {{ width: 100%; box-sizing: border-box; font: inherit; }}
button {{ font: inherit; padding: .4rem 1.2rem; }}
table {{ border-collapse: collapse; margin: 1rem 0; min-width: min(100%, 14rem); }}
caption {{ font-weight: bold; text-align: left; overflow-wrap: anywhere; }}
td {{ padding: .2rem .9rem .2rem 0; border-bottom: 1px solid #8884; vertical-align: top; }}
td:last-child {{ white-space: nowrap; padding-right: 0; text-align: right; }}
iframe {{ width: 100%; height: 34rem; border: 1px solid #8884; }}
#said {{ min-height: 1.5rem; }}
</style></head>
<body>
<h1>{name}</h1>
<p>{does}{length}</p>
<form id="form">
<label for="text">A text</label>
<textarea id="text" rows="12" required></textarea>
<p><button>Answer</button></p>
</form>
<p id="said" role="status"></p>
<table id="answers"></table>
<iframe id="explained" sandbox="" title="What the answer goes by" hidden></iframe>
<p><a href="docs">The JSON API</a></p>
<script>
const by = (id) => document.getElementById(id);
async function ask(path, text) {{
  const given = {{method: "POST", headers: {{"content-type": "application/json"}}, body: JSON.stringify({{text}})}};
  const answer = await fetch(path, given);
  if (!answer.ok) throw Object.assign(new Error((await answer.json()).error), {{status: answer.status}});
  return answer;
}}
const seconds = (value) => value < 1 ? `${{(1000 * value).toFixed(0)}} ms` : `${{value.toFixed(1)}} s`;
by("form").addEventListener("submit", async (event) => {{
  event.preventDefault();
  const text = by("text").value;
  by("said").textContent = "…";
  by("answers").replaceChildren();
  by("explained").hidden = true;
  try {{
    const found = await (await ask("predict", text)).json();
    const answer = found.answers[0];
    let said = `${{answer.tokens}} tokens${{answer.cut ? " (the rest was cut off)" : ""}}, ${{seconds(found.seconds)}}`;
    if (found.encoder_seconds !== undefined) {{
      const rows = answer.rows > 1 ? `${{answer.rows}} rows like these` : "a row of this length";
      said += ` in all; the encoder takes ${{seconds(found.encoder_seconds)}} for ${{rows}}`;
    }}
    if (found.softmax_seconds !== undefined) {{
      said += `, with softmax attention ${{seconds(found.softmax_seconds)}}`;
    }}
    by("said").textContent = said;
    if (answer.predicted !== undefined) {{
      const names = answer.predicted.length ? answer.predicted.join(", ") : "none of the labels";
      by("answers").createCaption().textContent = `Predicted: ${{names}}`;
    }}
    for (const choice of answer.choices) {{
      const row = by("answers").insertRow();
      row.insertCell().textContent = choice.label;
      row.insertCell().textContent = choice.value === undefined
        ? `${{(100 * choice.probability).toFixed(1)}} %` : choice.value.toPrecision(4);
    }}
  }} catch (error) {{
    by("said").textContent = error.message;
    return;
  }}
  try {{
    // A new frame: Chromium leaves one that was hidden meanwhile empty.
    const frame = by("explained").cloneNode();
    frame.srcdoc = await (await ask("explain", text)).text();
    frame.hidden = false;
    by("explained").replaceWith(frame);
  }} catch (error) {{
    // Not every model has an explanation.
    if (error.status !== 404) by("said").textContent += `; not explained: ${{error.message}}`;
  }}
}});
</script>
</body></html>
"""


def page(model: Model) -> str:
    """The page of a model's service."""
    length = "" if model.longest is None else f" It reads up to {model.longest:,} tokens."
    return _PAGE.format(name=html.escape(model.name), does=html.escape(model.does), length=length)
