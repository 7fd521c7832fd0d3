// Shows the OpenAPI description of the service: paths, fields, and a command to try each.
const response = await fetch("openapi.json");
const api = await response.json();
document.getElementById("about").textContent = `${api.info.title} ${api.info.version}. ${api.info.description}`;

function element(name, content = "", kind = "") {
  const made = document.createElement(name);
  made.append(...[content].flat());
  if (kind) made.className = kind;
  return made;
}

const resolve = (schema) => (schema?.$ref ? api.components.schemas[schema.$ref.split("/").pop()] : schema);

function typeOf(schema) {
  if (!schema) return "";
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.anyOf) return schema.anyOf.map(typeOf).join(" or ");
  if (schema.type === "array") return `list of ${typeOf(schema.items) || "values"}`;
  if (schema.const !== undefined || schema.enum) return JSON.stringify(schema.const ?? schema.enum);
  const bounds = [schema.minimum, schema.maximum].every((value) => value !== undefined) ? ` ${schema.minimum} to ${schema.maximum}` : "";
  return `${schema.type ?? "value"}${bounds}`;
}

function fields(schema) {
  const found = resolve(schema);
  if (found?.type === "array") return fields(found.items);
  const rows = Object.entries(found?.properties ?? {}).map(([name, one]) => {
    const given = found.required?.includes(name) ? "required" : one.default === undefined || one.default === null ? "" : `default ${JSON.stringify(one.default)}`;
    return element("tr", [element("td", element("code", name)), element("td", typeOf(one)), element("td", [one.description, given].filter(Boolean).join("; "))]);
  });
  return element("table", element("tbody", rows));
}

function command(verb, path, body) {
  const parts = [`curl ${location.origin}${path}`];
  const [kind, content] = Object.entries(body?.content ?? {})[0] ?? [];
  if (kind === "application/json") {
    const example = resolve(content.schema)?.examples?.[0];
    parts.push("-H 'Content-Type: application/json'", `-d '${JSON.stringify(example ?? {})}'`);
  } else if (kind) parts.push("--data-urlencode 'text=Cocoa prices rose in Bahia' -d limit=3");
  return parts.join(" \\\n  ");
}

function section(verb, path, about) {
  const inside = [];
  if (about.parameters) {
    const rows = about.parameters.map((one) =>
      element("tr", [element("td", element("code", one.name)), element("td", typeOf(one.schema)), element("td", `in the ${one.in}${one.schema.default === undefined ? "" : `; default ${JSON.stringify(one.schema.default)}`}`)]),
    );
    inside.push(element("h3", "Parameters"), element("table", element("tbody", rows)));
  }
  for (const [kind, content] of Object.entries(about.requestBody?.content ?? {})) inside.push(element("h3", `Request (${kind})`), fields(content.schema));
  const answer = about.responses["200"]?.content?.["application/json"]?.schema;
  if (answer && Object.keys(resolve(answer)?.properties ?? {}).length) inside.push(element("h3", `Answer (${typeOf(answer)})`), fields(answer));
  inside.push(element("h3", "Try it"), element("pre", command(verb, path, about.requestBody)));
  const head = [element("span", verb.toUpperCase(), "verb"), element("code", path), element("span", about.description)];
  const details = element("details", [element("summary", head), element("div", inside)], "card");
  details.open = path === "/v1/suggest";
  return details;
}

const groups = new Map();
for (const [path, verbs] of Object.entries(api.paths)) {
  for (const [verb, about] of Object.entries(verbs)) {
    const tag = about.tags?.[0] ?? "Other";
    groups.set(tag, [...(groups.get(tag) ?? []), section(verb, path, about)]);
  }
}
const order = ["Labels", "Service", "Annif"];
const names = [...groups.keys()].sort((one, other) => order.indexOf(one) - order.indexOf(other));
const models = Object.entries(api.components.schemas)
  .filter(([name, schema]) => schema.properties && !/^(HTTP)?Validation/.test(name))
  .map(([name, schema]) => element("details", [element("summary", [element("code", name), element("span", schema.description ?? "")]), element("div", fields(schema))], "card"));
document.getElementById("paths").append(...names.flatMap((name) => [element("h2", name), ...groups.get(name)]), element("h2", "Types"), ...models);
