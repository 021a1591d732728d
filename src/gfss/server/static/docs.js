// The interface in words, from /openapi.json; works without the internet.

const make = (tag, text = "", ...children) => {
  const made = document.createElement(tag);
  made.textContent = text;
  made.append(...children);
  return made;
};

const specification = await (await fetch("/openapi.json")).json();
const groups = new Map();
for (const [path, methods] of Object.entries(specification.paths)) {
  for (const [method, operation] of Object.entries(methods)) {
    const group = operation.tags?.[0] ?? "other";
    groups.set(group, [...(groups.get(group) ?? []), { path, method: method.toUpperCase(), operation }]);
  }
}

const kind = (schema = {}) => {
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.anyOf) return schema.anyOf.map(kind).filter((one) => one !== "null").join(" or ");
  if (schema.enum) return schema.enum.join(" | ");
  if (schema.items || schema.prefixItems) return `list of ${kind(schema.items ?? schema.prefixItems[0])}`;
  return schema.type ?? "anything";
};

const table = (rows) => {
  const made = make("table");
  for (const cells of rows) made.append(make("tr", "", ...cells.map((cell) => make("td", cell))));
  return made;
};

function command({ path, method, operation }) {
  const body = operation.requestBody ? ` -H 'Content-Type: application/json' -d '{...}'` : "";
  const file = /body/.test(operation.description ?? "") && !operation.requestBody ? " --data-binary @FILE" : "";
  const query = (operation.parameters ?? []).filter((one) => one.in === "query" && one.required).map((one) => `${one.name}=...`);
  return `curl ${method === "GET" ? "" : `-X ${method} `}'${location.origin}${path}${query.length ? `?${query.join("&")}` : ""}'${body}${file}`;
}

function show(one) {
  const { path, method, operation } = one;
  const badge = make("span", method);
  badge.className = `method ${method}`;
  const made = make("details", "", make("summary", "", badge, make("code", path), make("span", operation.summary)));
  made.append(make("p", operation.description ?? ""));
  const parameters = (operation.parameters ?? []).map((p) => [p.name, kind(p.schema), p.in + (p.required ? "" : ", optional"), p.description ?? p.schema?.description ?? ""]);
  if (parameters.length) made.append(table(parameters));
  const body = operation.requestBody?.content?.["application/json"]?.schema;
  const named = body && (body.$ref ?? body.anyOf?.find((each) => each.$ref)?.$ref);
  if (named) {
    const schema = specification.components.schemas[named.split("/").pop()];
    made.append(make("p", `JSON: ${schema.description ?? ""}`));
    made.append(table(Object.entries(schema.properties ?? {}).map(([name, each]) => [name, kind(each), schema.required?.includes(name) ? "" : "optional"])));
  }
  made.append(make("pre", command(one)));
  return made;
}

const holder = document.querySelector("#operations");
for (const [group, operations] of groups) holder.append(make("h2", group), ...operations.map(show));
