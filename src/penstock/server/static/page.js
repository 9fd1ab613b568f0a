"use strict";
// Small helpers of the page. Everything goes through the same routes as every other client.
const token = document.querySelector('meta[name="page-token"]')?.content || "";
const $ = (selector, within = document) => within.querySelector(selector);
const $$ = (selector, within = document) => [...within.querySelectorAll(selector)];
const node = (tag, text, name) => { const made = document.createElement(tag); if (text !== undefined) made.textContent = text; if (name) made.className = name; return made; };

async function ask(path, method = "GET", body) {
  const answer = await fetch(path, { method, headers: { "Content-Type": "application/json", "X-Penstock-Page": token }, body: body === undefined ? undefined : JSON.stringify(body) });
  if (answer.status === 401) location.href = "/signin";
  const said = answer.status === 204 ? null : await answer.json();
  if (!answer.ok) throw said;
  return said;
}
function say(text, bad, solution) {
  const box = $("#said"); box.className = "shown " + (bad ? "trouble" : "card"); box.replaceChildren(node("b", text));
  if (solution) box.append(node("em", solution));
  clearTimeout(say.timer); say.timer = setTimeout(() => { box.className = ""; }, bad ? 12000 : 4000);
}
const failed = (error) => say(error.message || String(error), true, error.solution);
const path = (...parts) => "/pipelines/" + parts.map(encodeURIComponent).join("/");

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-post]");
  if (!button) return;
  if (button.dataset.confirm && !confirm(button.dataset.confirm)) return;
  button.disabled = true;
  try {
    const done = await ask(button.dataset.post, button.dataset.method || "POST", button.dataset.body ? JSON.parse(button.dataset.body) : undefined);
    if (button.dataset.then) { location.href = button.dataset.then; return; }
    if (done?.refused?.length) say(`Tried again, and it is still not decodable: ${done.refused[0].reason}`, true, "A newer penstock may know how. Drop it to have the table copied again");
    else say(button.dataset.said || "Done");
    await refresh();
  } catch (error) { failed(error); } finally { button.disabled = false; }
});

// Parts marked with an id and `data-live` are rendered by the server again every few seconds.
async function refresh() {
  const parts = $$("[data-live]");
  if (!parts.length || document.hidden) return;
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
  if (answer.redirected) { location.href = answer.url; return; }
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const part of parts) {
    const other = fresh.getElementById(part.id);
    if (!other || other.innerHTML === part.innerHTML) continue;
    const focused = part.contains(document.activeElement) ? signs(document.activeElement) : null;
    part.innerHTML = other.innerHTML;
    if (focused) focusable(part).find((one) => signs(one) === focused)?.focus({ preventScroll: true });
  }
  arrange();
}
// Who uses the keyboard stays where he is: what had the focus has it again.
const focusable = (part) => $$("a, button, [tabindex]", part);
const signs = (one) => [one.tagName, one.getAttribute("href"), one.dataset.post?.replace(/(pause|resume|start|stop)(?=[?]|$)/, ""), one.dataset.look, one.dataset.body, one.title].join("|");

// A figure says what it is when it is pointed at, and to fingers and keys when it is pressed.
function explain(event) {
  const one = event.target.closest("[data-explains]");
  const sorts = one?.tagName === "TH" && event.pointerType !== "touch";
  if (one && !sorts && (event.type === "click" || event.key === "Enter")) say(one.title);
}
document.addEventListener("click", explain); document.addEventListener("keydown", explain);

setInterval(() => refresh().catch(() => {}), 3000);

// Filter and sort a table; both outlive a refresh.
const wish = { text: "", state: "", column: null, down: false };
function arrange() {
  const body = $("tbody[data-sortable]");
  if (!body) return;
  const rows = $$("tr", body);
  for (const row of rows) row.hidden = !(row.dataset.name.includes(wish.text) && (!wish.state || row.dataset.state === wish.state));
  if (wish.column !== null) {
    const value = (row) => { const cell = row.cells[wish.column]; return cell.dataset.value !== undefined ? Number(cell.dataset.value) : cell.textContent; };
    rows.sort((a, b) => { const x = value(a), y = value(b); return (x < y ? -1 : x > y ? 1 : 0) * (wish.down ? -1 : 1); });
    body.append(...rows);
  }
  const shown = $("#shown"); if (shown) shown.textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length}`;
}
$("#filter")?.addEventListener("input", (event) => { wish.text = event.target.value; arrange(); });
$("#state")?.addEventListener("change", (event) => { wish.state = event.target.value; arrange(); });
document.addEventListener("click", (event) => {
  const head = event.target.closest("th button[data-column]");
  if (!head) return;
  const column = Number(head.dataset.column);
  wish.down = wish.column === column ? !wish.down : true; wish.column = column; arrange();
});
arrange();

// Charts of the last hour.
const units = { s: (v) => v == null ? "–" : Number(v.toPrecision(3)) + " s", n: (v) => v == null ? "–" : v.toLocaleString("en"), b: (v) => { if (v == null) return "–"; let u = 0; while (v >= 1024 && u < 4) { v /= 1024; u++; } return v.toFixed(u ? 1 : 0) + " " + ["B", "KiB", "MiB", "GiB", "TiB"][u]; } };
const series = { lag_seconds: "lag", rate: "changes per second", batch_seconds: "batch", memory_bytes: "memory", wal_bytes: "WAL kept", log_bytes: "change log" };
const incrs = { b: [0, 1, 2, 3, 4].flatMap((power) => Array.from({ length: 10 }, (_, two) => 1024 ** power * 2 ** two)) };
const clock = (at, seconds) => new Date(at * 1000).toISOString().slice(11, seconds ? 19 : 16);
const plots = [];
function draw(box, data) {
  const names = box.dataset.series.split("|").filter((name) => data[name]);
  const colour = getComputedStyle(document.documentElement);
  const palette = ["--accent", "--warn", "--ok", "--bad"].map((name) => colour.getPropertyValue(name).trim());
  const format = units[box.dataset.unit];
  const axis = { stroke: colour.getPropertyValue("--dim").trim(), grid: { stroke: colour.getPropertyValue("--line").trim(), width: 1 } };
  const target = $("div", box);
  const values = [data.at, ...names.map((name) => data[name])];
  const old = plots.find((one) => one.box === box);
  if (old && old.names === names.join()) { old.plot.setData(values); return; }
  target.replaceChildren();
  const plot = new uPlot({ width: Math.max(200, box.clientWidth - 24), height: 170, cursor: { y: false },
    scales: { x: { range: (_, low, high) => high > low ? [low, high] : [low - 60, low + 1] }, y: { range: (_, low, high) => [0, high > 0 ? high * 1.1 : box.dataset.unit === "b" ? 1024 : 1] } },
    axes: [{ ...axis, space: 70, values: (_, ticks) => ticks.map((at) => clock(at, ticks.at(-1) - ticks[0] < 300)) },
      { ...axis, size: 84, ...(incrs[box.dataset.unit] ? { incrs: incrs[box.dataset.unit] } : {}), values: (_, ticks) => ticks.map(format) }],
    series: [{ label: "at", value: (_, at) => at == null ? "–" : clock(at, true) }, ...names.map((name, number) => ({ label: series[name], stroke: palette[number % 4], width: 2, value: (_, v) => format(v) }))] }, values, target);
  plots.push({ box, plot, names: names.join() });
}
async function charts() {
  const boxes = $$(".chart[data-series]");
  if (!boxes.length || document.hidden) return;
  const data = await ask(boxes[0].dataset.from);
  for (const box of boxes) draw(box, data);
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { plots.length = 0; charts().catch(() => {}); });
charts().catch(failed); setInterval(() => charts().catch(() => {}), 5000);

// Verify and repair: a job that is asked for until it has ended.
async function job(name, body, box) {
  box.replaceChildren(node("p", "Comparing with the source at one position …", "dim"));
  let found = await ask(path(name, "verify"), "POST", body);
  while (found.state === "running") {
    await new Promise((done) => setTimeout(done, 700));
    found = await ask(path(name, "jobs", found.id));
    if (found.progress) box.replaceChildren(node("p", found.progress, "dim"));
  }
  if (found.state === "failed") throw found.error;
  return found.result;
}
const wrong = { missing: "is missing in the destination", extra: "is in the destination only", differs: "has other values", doubled: "is there more than once" };
function row(...cells) { const made = node("tr"); for (const one of cells) { const cell = node("td"); cell.append(...[one].flat()); made.append(cell); } return made; }
function head(...names) { const made = node("thead"), line = node("tr"); names.forEach((name) => line.append(node("th", name))); made.append(line); return made; }
function differing(found) {
  const table = node("table"), body = node("tbody"), scroll = node("div", undefined, "scroll");
  table.append(head("key", "row", "column", "source", "destination"), body); scroll.append(table);
  const shown = (value) => value === null ? node("span", "null", "dim") : node("code", value);
  for (const one of found.rows) {
    const cells = one.cells.length ? one.cells : [null];
    cells.forEach((cell, at) => body.append(row(at ? "" : one.key.join(", "), at ? "" : wrong[one.kind] || one.kind, cell ? cell.column : "", cell ? shown(cell.source) : "", cell ? shown(cell.lake) : "")));
  }
  if (!found.complete) body.append(row("…", "there are more rows than are shown", "", "", ""));
  return scroll;
}
function differences(box, result, of) {
  box.replaceChildren();
  for (const table of result.tables) {
    const card = node("div", undefined, "card");
    const verdict = table.equal ? (table.repaired ? ": equal after the repair" : ": equal") : table.error ? ": not compared" : ": differs";
    card.append(node("h3", table.table + verdict));
    if (table.source_rows != null) card.append(node("p", `${table.source_rows.toLocaleString("en")} rows at the source, ${table.lake_rows.toLocaleString("en")} in the destination` + (table.position ? `, compared at position ${table.position}` : ""), "dim"));
    if (table.error) { const trouble = node("div", undefined, "trouble"); trouble.append(node("b", table.error)); if (table.solution) trouble.append(node("em", table.solution)); card.append(trouble); }
    const found = table.differing;
    if (found && found.rows.length) { if (table.repaired) card.append(node("p", "These rows were put right:", "dim")); card.append(differing(found)); }
    box.append(card);
    if (!table.equal && !table.error) {
      const actions = node("div", undefined, "actions"), repair = node("button", "Repair these rows", "main");
      repair.addEventListener("click", () => verify({ ...of, table: table.table }, true, box)); actions.append(repair); card.append(actions);
    }
  }
}
async function verify(of, repair, box) {
  try { differences(box, await job(of.pipeline, { tables: [of.table], destination: of.destination, repair }, box), of); refresh(); } catch (error) { box.replaceChildren(); failed(error); }
}
for (const button of $$("button[data-verify]")) button.addEventListener("click", () => verify({ ...button.dataset }, false, $("#verified")));

// First rows.
for (const button of $$("button[data-rows]")) button.addEventListener("click", async (event) => {
  const box = $("#rowsbox"); box.replaceChildren(node("p", "Reading …", "dim"));
  try {
    const found = await ask(path(event.target.dataset.pipeline, "query"), "POST", { sql: event.target.dataset.sql, destination: event.target.dataset.destination, limit: 20 });
    if (!found.rows.length) { box.replaceChildren(node("p", "The table is empty.", "dim")); return; }
    const table = node("table"), head = node("tr"), names = Object.keys(found.rows[0]);
    names.forEach((name) => head.append(node("th", name))); table.append(head);
    for (const row of found.rows) { const line = node("tr"); names.forEach((name) => line.append(node("td", row[name] === null ? "null" : typeof row[name] === "object" ? JSON.stringify(row[name]) : String(row[name])))); table.append(line); }
    const scroll = node("div", undefined, "scroll"); scroll.append(table); box.replaceChildren(scroll);
  } catch (error) { box.replaceChildren(); failed(error); }
});

// The difference between two versions of a structure.
const versions = $("#versions");
if (versions) {
  ask(versions.dataset.from).then((found) => {
    const show = () => {
      const columns = (number) => new Map(found[number].definition.columns.map((one) => [one.name, one.type.name + (one.nullable ? "" : " not null")]));
      const before = columns(first.value), after = columns(second.value), list = node("pre");
      for (const [name, type] of before) if (after.get(name) !== type) list.append(node("div", `− ${name} ${type}`, "removed"));
      for (const [name, type] of after) list.append(before.get(name) === type ? node("div", `  ${name} ${type}`) : node("div", `+ ${name} ${type}`, "added"));
      $("#difference").replaceChildren(list);
    };
    const select = (value) => { const made = node("select"); found.forEach((one, number) => { const option = node("option", `version ${one.version}, from ${one.position}`); option.value = number; made.append(option); }); made.value = value; made.addEventListener("change", show); return made; };
    const first = select(Math.max(0, found.length - 2)), second = select(found.length - 1);
    first.setAttribute("aria-label", "earlier version"); second.setAttribute("aria-label", "later version");
    versions.replaceChildren(first, node("span", " → "), second); show();
  }).catch(() => versions.replaceChildren(node("span", "no structure is known yet", "dim")));
}

// Look at one message.
document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-look]");
  if (!button) return;
  try { const found = await ask(button.dataset.look); $("#message").replaceChildren(node("h2", `Message ${found.id}`), node("pre", (found.parts || []).join("\n")), node("pre", JSON.stringify({ ...found, parts: undefined }, null, 1))); $("#message").scrollIntoView(); } catch (error) { failed(error); }
});

// The map editor.
const map = $("#map");
if (map) {
  const name = map.dataset.pipeline, chosen = new Map(), taken = new Map();  // by table: what is wanted, and the rule that takes it
  let rules = JSON.parse(map.dataset.rules);
  const plain = (text) => /^[a-z_][\w.]*$/i.test(text) && !/^(true|false|null|yes|no|on|off|y|n)$/i.test(text);
  const flow = (value) => typeof value === "string" ? (plain(value) ? value : JSON.stringify(value)) : Array.isArray(value) ? `[${value.map(flow).join(", ")}]`
    : value && typeof value === "object" ? `{${Object.entries(value).map(([key, one]) => `${flow(key)}: ${flow(one)}`).join(", ")}}` : JSON.stringify(value);
  const yaml = () => "tables:\n" + result().map((rule) => "  - " + Object.entries(rule).map(([key, value]) => `${key}: ${flow(value)}`).join("\n    ")).join("\n");
  // A table that is changed gets a rule of its own, which has everything that its present rule says but what is changed here.
  function result() {
    const own = [], left = new Map();
    for (const [table, want] of chosen) {
      const number = taken.get(table), { match, exclude, ...base } = number == null ? {} : rules[number];
      if (!want.follow) { if (number != null) left.set(number, [...(left.get(number) || []), table]); continue; }
      const columns = { ...(base.columns || {}) };
      for (const [column, what] of Object.entries(want.columns)) if (what === "keep") delete columns[column]; else columns[column] = what;
      const made = { match: table, ...base, ...(want.mode ? { mode: want.mode } : {}), ...(want.target ? { target: want.target } : {}), ...(want.where ? { where: want.where } : {}) };
      delete made.columns; if (Object.keys(columns).length) made.columns = columns;
      own.push(made);
    }
    const kept = rules.map((rule, number) => left.has(number) && !chosen.has(rule.match) ? { ...rule, exclude: [...new Set([...(rule.exclude || []), ...left.get(number)])] } : rule);
    return [...own, ...kept.filter((rule) => !chosen.has(rule.match))];
  }
  // What becomes of each column: kept, left out, or masked; under its own name or another.
  function columnsOf(table, before, note, want) {
    const box = node("div", undefined, "columns");
    for (const one of table.columns) {
      const line = node("div"), choice = node("select"), rename = node("input");
      for (const what of one.key ? ["keep"] : ["keep", "mask", "drop"]) choice.append(node("option", what));
      const now = before[one.name] ?? "keep", masked = now === "mask" || now.mask;
      choice.value = now === "drop" ? "drop" : masked ? "mask" : "keep"; choice.setAttribute("aria-label", `what becomes of column ${one.name}`);
      rename.placeholder = one.name; rename.value = now.rename || ""; rename.setAttribute("aria-label", `name of column ${one.name} in the destination`);
      const sample = node("span", undefined, "dim");
      const show = () => {
        rename.disabled = choice.value === "drop";
        sample.textContent = choice.value === "drop" ? "is not there" : choice.value === "mask" ? "a hash: equal values stay equal, and nobody can read them" : one.type;
      };
      const set = () => { want.columns[one.name] = choice.value === "drop" ? "drop" : rename.value ? { rename: rename.value, ...(choice.value === "mask" ? { mask: true } : {}) } : choice.value; show(); note(); };
      [choice, rename].forEach((input) => input.addEventListener("change", set));
      line.append(node("code", one.name), choice, rename, sample); box.append(line); show();
    }
    return box;
  }
  const changed = () => { $("#yaml").textContent = yaml(); $("#save").disabled = !chosen.size; };
  // The first rows as they would arrive under the rule that is on the page now.
  async function preview(table, scope, box) {
    const number = taken.get(table), own = result().find((rule) => rule.match === table) || (number == null ? {} : rules[number]);
    try {
      const found = await ask(path(name, "preview"), "POST", { table: scope ? `${scope}:${table}` : table, rule: own });
      const shown = node("table"), body = node("tbody");
      for (const one of found.rows) body.append(row(...one.map((value) => value === null ? node("span", "null", "dim") : typeof value === "object" ? JSON.stringify(value) : String(value))));
      shown.append(head(...found.columns), body);
      const more = found.left_out ? `, and ${found.left_out} that where leaves out` : "";
      box.replaceChildren(node("p", found.rows.length ? `As they would arrive: ${found.rows.length === 1 ? "1 row" : found.rows.length + " rows"} of the source${more}` : `No row would arrive${more}`, "dim"), shown);
    } catch (error) {
      const trouble = node("div", undefined, "trouble"); trouble.append(node("b", error.message || String(error))); if (error.solution) trouble.append(node("em", error.solution));
      box.replaceChildren(trouble);
    }
  }
  ask(path(name, "sources")).then((sources) => {
    const body = $("tbody", map); body.replaceChildren();
    const found = new Map(), scopes = new Map();  // a rule holds for all sources: a table that several have is shown once
    for (const source of sources) for (const one of source.tables) if (!found.has(one.table)) { found.set(one.table, one); scopes.set(one.table, sources.length > 1 ? source.name : ""); }
    for (const table of found.values()) {
      const line = node("tr"), follow = node("input"), mode = node("select"), target = node("input"), where = node("input");
      follow.type = "checkbox"; follow.checked = table.followed; follow.setAttribute("aria-label", `follow ${table.table}`);
      for (const one of ["clone", "append", "history", "events"]) mode.append(node("option", one));
      mode.value = table.feeds[0]?.mode || "clone"; mode.setAttribute("aria-label", `mode of ${table.table}`);
      const before = table.rule == null ? {} : rules[table.rule]; taken.set(table.table, table.rule);
      target.placeholder = table.feeds[0]?.target || table.table; target.setAttribute("aria-label", `target of ${table.table}`);
      where.placeholder = before.where || "all rows"; where.setAttribute("aria-label", `where of ${table.table}`);
      const want = { columns: {} };  // a mode is said only where somebody has chosen one: a rule may have several
      const rows = node("div", undefined, "preview scroll"), looked = () => rows.childElementCount && preview(table.table, scopes.get(table.table), rows);
      const note = () => { Object.assign(want, { follow: follow.checked, target: target.value, where: where.value }); chosen.set(table.table, want); changed(); looked(); };
      mode.addEventListener("change", () => { want.mode = mode.value; });
      [follow, mode, target, where].forEach((one) => one.addEventListener("change", note));
      const cell = (child, label) => { const made = node("td"); if (label) made.dataset.label = label; made.append(child); return made; };
      const title = node("td", undefined, "name"), details = node("details"), summary = node("summary");
      summary.append(node("span", table.table), node("div", table.columns.map((one) => one.name + (one.key ? " (key)" : "")).join(", "), "dim"));
      details.append(summary); title.append(details);
      const more = node("tr"), wide = node("td"); more.hidden = true; wide.colSpan = 6; wide.append(columnsOf(table, before.columns || {}, note, want)); more.append(wide);
      if (map.dataset.preview !== undefined) {
        const look = node("button", `Preview rows of ${table.table}`);
        look.addEventListener("click", () => preview(table.table, scopes.get(table.table), rows)); wide.append(look, rows);
      }
      details.addEventListener("toggle", () => { more.hidden = !details.open; });
      line.append(cell(follow, "follow"), title, cell(table.match ? `${table.rule + 1}: ${table.match}` : "none", "rule"), cell(mode, "mode"), cell(target, "target"), cell(where, "where")); body.append(line, more);
    }
    changed();
  }).catch((error) => {
    const trouble = node("div", undefined, "trouble"), line = node("tr"), cell = node("td"); cell.colSpan = 6;
    trouble.append(node("b", error.message || String(error))); if (error.solution) trouble.append(node("em", error.solution));
    cell.append(trouble); line.append(cell); $("tbody", map).replaceChildren(line);
  });
  $("#save").addEventListener("click", async () => {
    try { await ask(path(name), "PATCH", { tables: result() }); say("Saved, and the pipeline is started again"); setTimeout(() => location.reload(), 1500); } catch (error) { failed(error); }
  });
}
