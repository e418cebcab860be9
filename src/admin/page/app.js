// The operators' page: asks for the state every two seconds, and draws it. No figure is kept anywhere but here.
"use strict";

const base = new URL(".", document.currentScript.src);
const EVERY_MS = 2_000;
const POINTS = 60;
const SVG = "http://www.w3.org/2000/svg";

const at = (id) => document.getElementById(id);
const history = new Map();
let token = sessionStorage.getItem("tollgate-token");
let last = null;
let timer = 0;
let asked = null;

/** Makes an element; text is text, whatever is in it. */
function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "onclick") element.addEventListener("click", value);
    else element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}

function say(text, wrong = false) {
  at("message").textContent = text;
  at("message").classList.toggle("wrong", wrong);
}

async function call(path, body) {
  const options = { headers: { authorization: `Bearer ${token}` }, cache: "no-store" };
  if (body) Object.assign(options, { method: "POST", body: JSON.stringify(body) });
  const response = await fetch(new URL(`api/${path}`, base), options);
  const answer = await response.json().catch(() => ({ error: `the answer of status ${response.status} is no JSON` }));
  if (response.ok) return answer;
  const error = new Error(answer.error ?? `status ${response.status}`);
  const wait = response.headers.get("retry-after");
  if (wait) error.message += `; try again in ${wait} s`;
  error.status = response.status;
  throw error;
}

// Figures

const perSecond = (rate) => (rate >= 100 ? Math.round(rate).toString() : rate.toFixed(1));
const whole = (count) => count.toLocaleString("en");

function span(ms) {
  if (ms < 1_000) return `${ms} ms`;
  const units = [["d", 86_400], ["h", 3_600], ["min", 60], ["s", 1]];
  let rest = Math.ceil(ms / 1_000);
  const parts = [];
  for (const [unit, seconds] of units) {
    const count = Math.floor(rest / seconds);
    rest -= count * seconds;
    if (count > 0) parts.push(`${count} ${unit}`);
  }
  return parts.slice(0, 2).join(" ");
}

/** Notes what a rule came to since the last time, as rates. */
function note(rule, seconds, before) {
  const points = history.get(rule.name) ?? [];
  if (before && seconds > 0) {
    const rate = (...names) => {
      const sum = (counts) => names.reduce((total, name) => total + counts[name], 0);
      return Math.max(0, sum(rule.counts) - sum(before.counts)) / seconds;
    };
    points.push({
      admitted: rate("allowed", "shadow_allowed"),
      refused: rate("refused", "unavailable"),
      shadow: rate("shadow_refused"),
    });
    if (points.length > POINTS) points.shift();
  }
  history.set(rule.name, points);
  return points;
}

function chart(points, now) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", `0 0 ${POINTS - 1} 100`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  const told = ["admitted", "refused", "shadow"].map((name) => `${perSecond(now[name])} ${name === "shadow" ? "refused in the shadow" : name}`);
  svg.setAttribute("aria-label", `${told.join(", ")} a second`);
  const top = Math.max(1, ...points.flatMap((point) => Object.values(point)));
  for (const name of ["admitted", "refused", "shadow"]) {
    if (name !== "admitted" && !points.some((point) => point[name] > 0)) continue;
    const line = document.createElementNS(SVG, "polyline");
    const first = POINTS - points.length;
    line.setAttribute("class", name);
    line.setAttribute("points", points.map((point, i) => `${first + i},${(96 - (92 * point[name]) / top).toFixed(1)}`).join(" "));
    svg.append(line);
  }
  return svg;
}

function card(rule, points) {
  const { counts } = rule;
  const now = points.at(-1) ?? { admitted: 0, refused: 0, shadow: 0 };
  const rate = (name, text) => make("span", {}, make("b", { class: name }, perSecond(now[name])), ` ${text}`);
  const rates = [rate("admitted", "admitted/s")];
  if (!rule.shadow) rates.push(rate("refused", "refused/s"));
  if (rule.shadow || counts.shadow_refused > 0) rates.push(rate("shadow", "shadow/s"));
  const more = [`${whole(counts.allowed + counts.shadow_allowed)} admitted`];
  if (!rule.shadow) more.push(`${whole(counts.refused)} refused`);
  const rest = {
    other_refused: "refused by another rule",
    shadow_refused: "refused in the shadow",
    near_limit: "near the limit",
    unavailable: "unavailable",
    degraded: "without the store",
    overflow: "without room",
    allotted: "drawn ahead",
  };
  for (const [name, text] of Object.entries(rest)) if (counts[name] > 0) more.push(`${whole(counts[name])} ${text}`);
  const quota = rule.quota ? `${rule.quota}, ${rule.algorithm}${rule.shadow ? ", in the shadow" : ""}` : "rules beyond those that have a place of their own";
  const peak = Math.max(...points.map((point) => Math.max(...Object.values(point))));
  if (peak > 0) more.push(`the chart's top is ${perSecond(peak)}/s`);
  return make("article", { class: "card", "data-rule": rule.name },
    make("h3", {}, rule.name),
    make("p", { class: "quota" }, quota),
    chart(points, now),
    make("p", { class: "now" }, ...rates),
    make("p", { class: "more" }, more.join(", ")));
}

/** Fills a table of keys. The button that has the focus keeps it. */
function fill(id, most) {
  const focused = document.activeElement?.closest(`#${id}`) ? document.activeElement.textContent : null;
  at(id).replaceChildren(...most.map((entry) => make("tr", {},
    make("td", {}, make("button", { type: "button", class: "key", title: "explain this key", onclick: () => explain({ key: entry.key }) }, entry.key)),
    make("td", {}, entry.rule),
    make("td", { class: "number" }, (entry.over_by_at_most > 0 ? "about " : "") + whole(entry.count)))));
  at(`no-${id}`).hidden = most.length > 0;
  at(id).closest("table").hidden = most.length === 0;
  if (focused !== null) [...at(id).querySelectorAll("button")].find((button) => button.textContent === focused)?.focus();
}

function fact(name, value, wrong = false) {
  return make("div", {}, make("dt", {}, name), make("dd", wrong ? { class: "wrong" } : {}, value));
}

function store(now, before) {
  const facts = [fact("kept in", now.shared ? "a shared store" : "this process")];
  if (now.shared) {
    const connected = { true: "yes", false: "no" }[now.connected] ?? "not known";
    facts.push(fact("connected", connected, now.connected === false));
    facts.push(fact("breakers", now.breakers_open > 0 ? `${now.breakers_open} open` : "closed", now.breakers_open > 0));
    facts.push(fact("calls", whole(now.calls)), fact("failed", whole(now.failures)));
    const [calls, us] = [now.calls - (before?.calls ?? 0), now.call_us - (before?.call_us ?? 0)];
    facts.push(fact("time of a call", calls > 0 ? `${(us / calls / 1_000).toFixed(2)} ms` : "none now"));
    facts.push(fact("refused from memory", whole(now.deny_cache_hits)));
  }
  if (now.keys !== null) facts.push(fact("keys in memory", whole(now.keys)));
  at("store").replaceChildren(...facts);
}

function draw(state) {
  const before = last;
  const seconds = before ? (state.counted_ms - before.counted_ms) / 1_000 : 0;
  if (seconds < 0) history.clear();
  at("about").textContent = `process ${state.process.id}, version ${state.process.version}: figures ${state.figures}, for ${span(state.counted_ms)}`;
  const cards = state.rules.map((rule) => card(rule, note(rule, seconds, before?.rules.find((old) => old.name === rule.name))));
  at("rules").replaceChildren(...cards);
  at("no-rules").hidden = cards.length > 0;
  fill("refused", state.refused);
  fill("shadow-refused", state.shadow_refused);
  store(state.store, before?.store);
  last = state;
}

// One key

function next(rule) {
  const [kind, text] = nextIfEnforced(rule);
  return rule.shadow && kind === "waits" ? ["shadow", `passes, in the shadow: would be ${text}`] : [kind, text];
}

function nextIfEnforced(rule) {
  if (rule.blocked) return ["waits", `refused: blocked for ${span(rule.passes_in_ms)}`];
  if (rule.passes) return ["passes", rule.remaining === 1 ? "passes, and the one after it would wait" : "passes"];
  return ["waits", rule.passes_in_ms === null ? "refused" : `refused: passes in ${span(rule.passes_in_ms)}`];
}

async function explain(about, quietly = false) {
  try {
    const told = await call("explain", about);
    asked = about;
    at("key").value = told.key;
    at("secret").checked = false;
    at("explained-title").textContent = `${told.key}${told.degraded ? " (without the store: this process's share)" : ""}`;
    const change = (path, text, rule) => make("button", {
      type: "button",
      "data-change": path,
      "aria-label": `${text} ${told.key} under ${rule.rule}`,
      onclick: () => act(path, rule.rule),
    }, text);
    at("standings").replaceChildren(...told.rules.map((rule) => {
      const [kind, text] = next(rule);
      const cell = (label, ...content) => make("td", { "data-label": label }, ...content);
      return make("tr", { "data-rule": rule.rule },
        cell("Rule", make("b", {}, rule.rule), ` ${rule.quota}`),
        cell("Next request", make("span", { class: kind }, text)),
        cell("Left", `${whole(rule.remaining)} of ${whole(rule.capacity)}`),
        cell("Full in", rule.full_in_ms > 0 ? span(rule.full_in_ms) : "it is full"),
        cell("Change", change("reset", "Reset", rule), rule.blocked ? change("unblock", "Unblock", rule) : change("block", "Block", rule)));
    }));
    at("explained").hidden = false;
    if (!quietly) {
      say("");
      at("explained").focus({ preventScroll: true });
      at("key-title").scrollIntoView({ block: "start" });
    }
  } catch (error) {
    fail(error);
  }
}

async function act(path, rule) {
  try {
    const body = { ...asked, rule };
    if (path === "block") body.seconds = Number(at("block-for").value);
    const done = await call(path, body);
    await explain(asked, true);
    const words = { reset: "is reset", block: `is blocked for ${span(body.seconds * 1_000)}`, unblock: "is let in again" };
    say(`${done.key} ${words[path]} under ${rule}.`);
    const [row] = [...at("standings").rows].filter((row) => row.dataset.rule === rule);
    row?.querySelector(`button[data-change]:not([data-change="reset"])`)?.focus();
  } catch (error) {
    fail(error);
  }
}

// Coming and going

function fail(error) {
  if (error.status === 401 || error.status === 429) {
    leave();
  }
  say(error.status ? error.message : `the service cannot be reached: ${error.message}`, true);
}

function leave() {
  clearTimeout(timer);
  sessionStorage.removeItem("tollgate-token");
  token = last = asked = null;
  history.clear();
  at("desk").hidden = at("leave").hidden = at("explained").hidden = true;
  at("about").textContent = "figures of this process only";
  at("enter").hidden = false;
  at("token").value = "";
  at("token").focus();
}

async function turn() {
  clearTimeout(timer);
  const mine = token;
  try {
    const state = await call("state");
    if (mine !== token) return;
    sessionStorage.setItem("tollgate-token", token);
    at("enter").hidden = true;
    at("desk").hidden = at("leave").hidden = false;
    if (at("message").classList.contains("wrong")) say("");
    draw(state);
    if (asked && !document.activeElement?.closest("#standings")) await explain(asked, true);
  } catch (error) {
    if (mine !== token) return;
    fail(error);
    if (!token) return;
  }
  timer = setTimeout(turn, EVERY_MS);
}

at("enter").addEventListener("submit", (event) => {
  event.preventDefault();
  token = at("token").value.trim();
  turn();
});
at("explain").addEventListener("submit", (event) => {
  event.preventDefault();
  const value = at("key").value.trim();
  explain(at("secret").checked ? { secret: value } : { key: value });
});
at("leave").addEventListener("click", () => {
  leave();
  say("The token is forgotten.");
});
document.addEventListener("visibilitychange", () => {
  if (!token) return;
  clearTimeout(timer);
  if (!document.hidden) turn();
});
if (token) turn();
else at("token").focus();
