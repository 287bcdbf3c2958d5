"use strict";
// The routes of a server, from its description openapi.json, with forms that send requests.
const pretty = value =>
  JSON.stringify(value, null, 2).replace(/\[\s+([-+\d.e,\s]+)\]/g, (_, inner) => "[" + inner.trim().replace(/\s+/g, " ") + "]");
const ask = (path, options = {}) => {
  const headers = { Accept: "application/json, */*;q=0.5", ...options.headers };
  if (at("token").value) headers.Authorization = "Bearer " + at("token").value;
  return fetch(path, { ...options, headers });
};

function example(media) {
  if (!media) return undefined;
  if (media.example !== undefined) return media.example;
  if (media.examples) return Object.values(media.examples)[0].value;
  return undefined;
}

function show(path, verb, route, parent) {
  const box = make("details", undefined, parent);
  const head = make("summary", undefined, box);
  make("span", verb.toUpperCase(), head, "verb");
  make("code", path, head);
  make("span", route.summary || "", head, "summary");
  if (route.description && route.description !== route.summary) make("p", route.description, box);
  const fields = (route.parameters || []).map(parameter => {
    const label = make("label", parameter.name + " (" + parameter.in + ") ", box);
    return [parameter, make("input", undefined, label)];
  });
  const contents = (route.requestBody || {}).content || {};
  const json = contents["application/json"];
  let body;
  if (json) {
    const forms = Object.keys(contents).filter(kind => kind !== "application/json");
    make("label", "Body" + (forms.length ? " (JSON, or binary: " + forms.join(", ") + ")" : ""), box);
    body = make("textarea", undefined, box);
    const shown = example(json);
    body.value = shown === undefined ? "" : pretty(shown);
    body.setAttribute("aria-label", "Body");
    const schema = make("details", undefined, box);
    make("summary", "Schema", schema);
    make("pre", pretty(json.schema || {}), schema);
  }
  const send = make("button", "Send", box);
  const result = make("pre", "", box);
  result.hidden = true;
  send.onclick = async () => {
    let target = path;
    const query = new URLSearchParams();
    for (const [parameter, field] of fields) {
      if (parameter.in === "path") target = target.replace("{" + parameter.name + "}", encodeURIComponent(field.value));
      if (parameter.in === "query" && field.value) query.set(parameter.name, field.value);
    }
    if ([...query].length) target += "?" + query;
    result.hidden = false;
    result.textContent = "…";
    const began = performance.now();
    try {
      const options = { method: verb.toUpperCase() };
      if (body) Object.assign(options, { body: body.value, headers: { "Content-Type": "application/json" } });
      const answer = await ask(target, options);
      let text = await answer.text();
      try {
        text = pretty(JSON.parse(text));
      } catch {
        /* not JSON: shown as received */
      }
      result.textContent =
        answer.status + " " + answer.statusText + ", " + (performance.now() - began).toFixed(1) + " ms\n\n" + text;
    } catch (error) {
      result.textContent = String(error);
    }
  };
  const answers = make("table", undefined, box);
  for (const [code, response] of Object.entries(route.responses || {})) {
    const row = make("tr", undefined, answers);
    make("td", code, row);
    const cell = make("td", response.description || "", row);
    const shown = example((response.content || {})["application/json"]);
    if (shown !== undefined) make("pre", pretty(shown), cell);
  }
}

async function load() {
  let answer;
  try {
    answer = await ask("openapi.json");
  } catch (error) {
    at("about").textContent = String(error);
    return;
  }
  if (!answer.ok) {
    at("about").textContent =
      answer.status === 401 ? "This node requires its token: enter it above." : "openapi.json: " + answer.status;
    return;
  }
  const api = await answer.json();
  document.title = api.info.title;
  at("title").textContent = api.info.title;
  at("about").textContent = "Chimera " + api.info.version + ". Machine-readable description: ";
  const link = make("a", "openapi.json", at("about"));
  link.href = "openapi.json";
  at("routes").replaceChildren();
  for (const [path, verbs] of Object.entries(api.paths))
    for (const [verb, route] of Object.entries(verbs)) show(path, verb, route, at("routes"));
}
at("token").onchange = load;
load();
