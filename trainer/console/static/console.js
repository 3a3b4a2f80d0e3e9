// Makes the page Now live: one stream of events, the curves and figures follow it. Without this file the page is whole.
import uPlot from "./vendor/uPlot.js";

const MOST_POINTS = 200; // as the server draws: a page that is left open does not grow
const MOST_EVENTS = 20;

const now = document.getElementById("now");
const prefix = now.dataset.prefix;
const model = now.dataset.model;
const points = JSON.parse(now.dataset.points);
const charts = [];
let position = Number(now.dataset.position);
let received = 0;

const byId = (id) => document.getElementById(id);
const NOTHING = "–";
const written = (value, digits = 3) =>
  value === null || value === undefined || !Number.isFinite(value) ? NOTHING : value.toLocaleString("en-US", {
    minimumFractionDigits: Math.abs(value) < 1000 ? digits : 0, maximumFractionDigits: Math.abs(value) < 1000 ? digits : 0 });
const dollars = (value) => `$${value.toLocaleString("en-US", { minimumFractionDigits: 2, maximumFractionDigits: 2 })}`;
const duration = (seconds) => seconds === null || seconds === undefined ? NOTHING
  : seconds < 90 ? `${seconds.toFixed(0)} s` : seconds < 5400 ? `${(seconds / 60).toFixed(0)} min` : `${(seconds / 3600).toFixed(1)} h`;
const percent = (share) => `${Math.round((share ?? 0) * 100)}%`;

function say(id, text) {
  const element = byId(id);
  if (element && element.textContent !== text) element.textContent = text; // text, never markup
}

// Curves

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function columns(curve, spread) {
  const known = points.filter((point) => point[curve] !== null && point[curve] !== undefined);
  const steps = known.map((point) => point.step), values = known.map((point) => point[curve]);
  if (!spread) return [steps, values];
  const half = known.map((point) => point[spread] ?? 0);
  return [steps, values, values.map((value, place) => value + half[place]), values.map((value, place) => value - half[place])];
}

function draw(place) {
  const { curve, spread, title } = place.dataset;
  const line = colour("--candidate"), ink = colour("--muted"), grid = { stroke: colour("--line"), width: 1 };
  const axis = { stroke: ink, grid, ticks: grid, font: "12px system-ui, sans-serif" };
  const hidden = { stroke: "transparent", width: 0, points: { show: false } };
  const options = {
    width: place.clientWidth, height: 220, legend: { show: false }, cursor: { drag: { x: false, y: false } },
    scales: { x: { time: false } },
    axes: [{ ...axis, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000], values: (_, ticks) => ticks.map((tick) => (Number.isInteger(tick) ? String(tick) : "")) }, { ...axis, size: 56 }],
    series: [{}, { stroke: line, width: 2, points: { show: points.length < 60, size: 6, fill: line } }, ...(spread ? [hidden, hidden] : [])],
    bands: spread ? [{ series: [2, 3], fill: line + "26" }] : [],
  };
  place.replaceChildren();
  const chart = new uPlot(options, columns(curve, spread), place);
  const canvas = place.querySelector("canvas");
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `${title}; the newest steps are below as numbers`);
  place.dataset.steps = String(chart.data[0].length);
  return { place, curve, spread, chart };
}

const isKnown = (place) => points.some((point) => Number.isFinite(point[place.dataset.curve]));

function drawAll() {
  for (const { chart } of charts.splice(0)) chart.destroy();
  for (const place of document.querySelectorAll("[data-curve]")) {
    if (isKnown(place)) charts.push(draw(place)); // else it keeps the words that there is no data
  }
  byId("no-steps").hidden = points.length > 0;
}

let redrawing = 0;
function redrawSoon() {
  cancelAnimationFrame(redrawing);
  redrawing = requestAnimationFrame(drawAll);
}

function addStep(data) {
  const last = points.findIndex((point) => point.step === data.step);
  const point = { step: data.step };
  for (const name of ["reward", "reward_std", "kl", "entropy", "tokens_per_second"]) point[name] = data[name] ?? null;
  if (last >= 0) points[last] = point; else points.push(point);
  points.sort((one, other) => one.step - other.step);
  points.splice(0, points.length - MOST_POINTS);
  for (const { chart, curve, spread, place } of charts) {
    chart.setData(columns(curve, spread));
    place.dataset.steps = String(chart.data[0].length);
  }
  if ([...document.querySelectorAll("[data-curve]")].filter(isKnown).length > charts.length) redrawSoon();
  say("step", String(data.step));
  for (const [name, digits] of [["reward", 3], ["reward_std", 3], ["kl", 4], ["entropy", 3], ["tokens_per_second", 0]]) {
    say(name, written(data[name], digits));
  }
  const row = document.createElement("tr");
  const cells = [[data.step, 0], [data.reward, 3], [data.reward_std, 3], [data.kl, 4], [data.entropy, 3], [data.tokens_per_second, 0]];
  for (const [place, [value, digits]] of cells.entries()) {
    const cell = document.createElement(place ? "td" : "th");
    if (!place) cell.scope = "row";
    cell.textContent = place ? written(value, digits) : String(value);
    row.append(cell);
  }
  const body = document.querySelector("#steps tbody");
  body.prepend(row);
  while (body.rows.length > MOST_EVENTS) body.lastElementChild.remove();
}

// Figures

function showProgress(data) {
  say("stage", data.stage || NOTHING);
  say("unit", data.unit || NOTHING);
  say("cost", dollars(data.cost_usd));
  say("eta", duration(data.seconds_left));
  say("share-text", percent(data.share));
  byId("share").value = data.share;
}

let asking = false, again = false;
async function showStatus() {
  if (asking) { again = true; return; }
  asking = true;
  try {
    const answer = await fetch(`${prefix}/api/v1/training/status?model=${encodeURIComponent(model)}`);
    if (answer.status === 401) say("link", "Your login has ended: reload the page to log in again.");
    if (!answer.ok) return;
    const status = await answer.json();
    const badge = document.createElement("span");
    badge.className = `badge ${status.state}`;
    badge.textContent = status.state;
    const rest = document.createElement("span");
    rest.className = "muted";
    rest.textContent = status.state === "idle" && status.run_state ? ` last run ${status.run_state}` : "";
    if (byId("state").textContent.trim() !== badge.textContent + rest.textContent) byId("state").replaceChildren(badge, rest);
    const busy = status.state !== "idle";
    const start = byId("start-form"), stop = byId("stop-form");
    if (start) {
      start.hidden = busy;
      stop.hidden = !busy;
      const resumes = ["interrupted", "failed"].includes(status.run_state);
      say("start", resumes ? "Resume the training" : "Start a training");
      if (busy) byId("start-form").elements.idempotency_key.value = crypto.randomUUID();
      for (const button of document.querySelectorAll(".deeds button")) button.disabled = false;
    }
    byId("share-line").hidden = status.state !== "training";
    say("judge_calls", status.judge_calls.toLocaleString("en-US"));
    say("cost", dollars(status.cost));
    say("host", status.host ?? NOTHING);
    say("stage", status.stage ?? NOTHING);
    say("unit", status.unit ?? NOTHING);
    say("eta", duration(status.eta));
    say("serving", status.serving ?? "the base model");
  } catch { /* the server restarts: the stream says so, and asks again when it is back */ } finally {
    asking = false;
    if (again) { again = false; showStatus(); }
  }
}

// Events

const SENTENCES = {
  run: (data) => `The run is ${data.state}${data.error ? `: ${data.error}` : ""}`,
  step: (data) => `Step ${data.step}: reward ${written(data.reward)}`,
  ruling: (data) => `The gate on ${data.release}: ${data.ruling}. ${data.reason}`,
  release: (data) => `${data.release} is ${String(data.state).replace("_", " ")}. ${data.reason}`,
  command: (data) => `To ${data.deed}: ${data.state}${data.by ? ` by ${data.by}` : ""}${data.outcome ? ` (${data.outcome})` : ""}`,
  collapse: (data) => `The model collapses: ${data.reason}`,
  budget: (data) => `The budget is exhausted: ${data.left_out} left out`,
};

function list(event) {
  const sentence = SENTENCES[event.kind];
  if (!sentence) return;
  const line = document.createElement("li"), at = document.createElement("time");
  at.dateTime = event.at;
  at.textContent = event.at.slice(11, 19);
  line.append(at, sentence(event.data));
  byId("no-events").hidden = true;
  byId("events").prepend(line);
  while (byId("events").children.length > MOST_EVENTS) byId("events").lastElementChild.remove();
}

function heard(message) {
  const event = JSON.parse(message.data);
  if (event.id <= position) return;
  position = event.id;
  received += 1;
  now.dataset.received = String(received);
  now.dataset.position = String(position);
  if (event.model !== null && event.model !== model) return;
  list(event);
  if (event.kind === "step") addStep(event.data);
  if (event.kind === "progress") showProgress(event.data);
  else showStatus();
}

const AWAY = "The console does not answer; trying again…";
let stream, waiting = 0;
function listen() {
  stream?.close();
  stream = new EventSource(`${prefix}/api/v1/events?after=${position}`);
  for (const kind of ["run", "step", "progress", "ruling", "release", "command", "collapse", "budget"]) {
    stream.addEventListener(kind, heard);
  }
  stream.onopen = () => { say("link", ""); clearTimeout(waiting); showStatus(); };
  stream.onerror = () => {
    if (stream.readyState !== EventSource.CLOSED) { say("link", AWAY); return; }
    clearTimeout(waiting); // an answer that is no stream: the browser gives up, we do not
    waiting = setTimeout(listen, 2000);
    showStatus(); // says whether the login has ended
  };
}

for (const form of document.querySelectorAll(".deeds form")) {
  form.addEventListener("submit", () => { for (const button of form.querySelectorAll("button")) button.disabled = true; });
}
new ResizeObserver(() => { for (const { chart, place } of charts) chart.setSize({ width: place.clientWidth, height: 220 }); }).observe(byId("curves"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawSoon);
addEventListener("pagehide", () => stream?.close());
addEventListener("pageshow", (event) => { if (event.persisted) listen(); });
drawAll();
listen();
