// Everything here is a convenience: each page reads and acts without it.
"use strict";

const root = document.documentElement;
const kept = (name) => { try { return localStorage.getItem(name); } catch { return null; } };
const keep = (name, value) => { try { localStorage.setItem(name, value); } catch { /* it lasts as long as the page */ } };

// ---------------------------------------------------------------------------------------------- theme and zone

if (kept("treadle-theme")) root.dataset.theme = kept("treadle-theme");

const pad = (number) => String(number).padStart(2, "0");
const local = () => kept("treadle-zone") === "local";

function tellTimes(within) {
  for (const time of within.querySelectorAll("time[datetime]")) {
    const at = new Date(time.dateTime);
    if (Number.isNaN(at.getTime())) continue;
    const zone = local() ? Intl.DateTimeFormat().resolvedOptions().timeZone : "UTC";
    const here = local() ? at : new Date(at.getTime() + at.getTimezoneOffset() * 60000);
    const day = `${here.getFullYear()}-${pad(here.getMonth() + 1)}-${pad(here.getDate())}`;
    const clock = `${pad(here.getHours())}:${pad(here.getMinutes())}:${pad(here.getSeconds())}`;
    time.title = `${day} ${clock} ${zone}`;
    if (time.dataset.t === "clock") time.textContent = time.textContent.includes("-") ? `${day} ${clock.slice(0, 5)}` : clock;
  }
  for (const button of document.querySelectorAll("[data-zone]")) button.textContent = local() ? "your zone" : "UTC";
}

// ---------------------------------------------------------------------------------------------- clicks

document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if (button.matches("[data-theme-toggle]")) {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    keep("treadle-theme", root.dataset.theme);
  }
  if (button.matches("[data-zone]")) {
    keep("treadle-zone", local() ? "utc" : "local");
    tellTimes(document);
  }
  if (button.matches("[data-copy]")) {
    navigator.clipboard?.writeText(button.parentElement.querySelector("code").textContent);
    button.textContent = "Copied";
  }
  if (button.matches("[data-help]")) document.getElementById("help").showModal();
});

document.addEventListener("change", (event) => {
  const box = event.target;
  if (box.matches(".c-pick input")) {
    box.closest("tr").classList.toggle("sel", box.checked);
    tellLive();
  }
  if (box.matches("[data-pick-all]")) {
    for (const one of document.querySelectorAll(".c-pick input")) {
      one.checked = box.checked;
      one.closest("tr").classList.toggle("sel", box.checked);
    }
    tellLive();
  }
});

// A form that asks the server while somebody types: its answer replaces the parts that are marked data-check.
let asked;
document.addEventListener("input", (event) => {
  const form = event.target.closest("form[data-checks]");
  if (!form) return;
  clearTimeout(asked);
  asked = setTimeout(async () => {
    const mine = asked;
    const answer = await fetch(form.dataset.checks, { method: "POST", body: new URLSearchParams(new FormData(form)) }).catch(() => null);
    if (!answer || mine !== asked || answer.redirected || !answer.headers.get("content-type")?.startsWith("text/html")) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const part of document.querySelectorAll("[data-check]")) {
      const made = fresh.querySelector(`[data-check="${CSS.escape(part.dataset.check)}"]`);
      if (!made || part.isEqualNode(made)) continue;
      part.replaceWith(document.adoptNode(made));
      const field = made.dataset.of && form.querySelector(`[name="${CSS.escape(made.dataset.of)}"][aria-describedby]`);
      if (field) field.setAttribute("aria-invalid", made.querySelector(".err") !== null);
    }
    tellTimes(form);
  }, 300);
});

// The page that was asked for comes late: say so, and let the old one stay.
let late;
addEventListener("beforeunload", () => { late = setTimeout(() => root.classList.add("loading"), 300); });
addEventListener("pageshow", () => { clearTimeout(late); root.classList.remove("loading"); });

// ---------------------------------------------------------------------------------------------- live values

const EVERY = 2000; // milliseconds between two loads at least
let stream, since, out = false, loading = false, wanted = false, last = 0, cost = 0;

// Somebody selects, types or is asked something, or nobody looks: nothing changes meanwhile.
function held() {
  const open = document.querySelector(".c-pick input:checked, [data-holds], dialog[open]") !== null;
  const typing = document.activeElement?.matches("main input:not([type=checkbox]), main select, main textarea") ?? false;
  return document.hidden || open || typing;
}

function tellLive() {
  const line = document.getElementById("live");
  if (!line) return;
  line.classList.toggle("away", out || since !== undefined);
  const word = out ? "Signed out" : since !== undefined ? "Reconnecting" : held() ? "Held" : "Live";
  const shown = line.querySelector("[data-live-word]");
  if (shown.textContent !== word) shown.textContent = word;
  line.title = out ? "your session has ended; what you send is kept, and asks you to sign in" : since !== undefined ? `no answer since ${since}` : word === "Held" ? "nothing changes while rows are selected or a form is open" : "";
}

// Make an element like another one, and touch only what differs: focus, selection and scroll stay.
function morph(old, made) {
  if (old.isEqualNode(made)) return;
  if (old.nodeType !== 1 || old.tagName !== made.tagName || old.namespaceURI !== made.namespaceURI) {
    old.replaceWith(made.cloneNode(true));
    return;
  }
  const current = old.classList.contains("cur"); // the row that the keys have come to
  for (const { name } of [...old.attributes]) if (!made.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  for (const { name, value } of made.attributes) if (old.getAttribute(name) !== value && name !== "open") old.setAttribute(name, value);
  if (current) old.classList.add("cur");
  if (old.hasAttribute("data-rows")) { morphRows(old, made); return; }
  const [was, is] = [[...old.childNodes], [...made.childNodes]];
  is.forEach((child, place) => {
    if (!was[place]) old.append(child.cloneNode(true));
    else if (child.nodeType === 3 && was[place].nodeType === 3) {
      if (was[place].data !== child.data) { was[place].data = child.data; tint(old); }
    } else morph(was[place], child);
  });
  was.slice(is.length).forEach((child) => child.remove());
}

// Rows never come or go while somebody looks: a new one is counted, one that left is dimmed.
function morphRows(old, made) {
  const fresh = new Map([...made.children].map((row) => [row.id, row]));
  const there = new Set([...old.children].map((row) => row.id));
  for (const row of old.children) {
    if (fresh.has(row.id)) morph(row, fresh.get(row.id));
    else row.classList.add("left");
  }
  let newer = 0;
  for (const id of fresh.keys()) { // of a list that is not by time, a new one may stand anywhere
    if (!there.has(id)) newer += 1;
    else if (old.dataset.rows !== "any") break;
  }
  const line = document.querySelector("[data-newer]");
  if (line) {
    line.hidden = newer === 0;
    line.querySelector("b").textContent = newer;
  }
}

function tint(element) {
  element.classList.remove("fresh");
  void element.offsetWidth;
  element.classList.add("fresh");
}

async function load() {
  wanted = true;
  if (loading || held()) { tellLive(); return; }
  const wait = last + Math.max(EVERY, 10 * cost) - Date.now();
  loading = true;
  if (wait > 0) await new Promise((done) => setTimeout(done, wait));
  try {
    if (held()) return;
    wanted = false;
    const began = Date.now();
    const answer = await fetch(location.href, { headers: { accept: "text/html" } });
    cost = Date.now() - began;
    if (asksToSignIn(answer)) { signedOut(); return; }
    if (!answer.ok) return;
    const made = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (held()) return;
    tellTimes(made);
    for (const part of document.querySelectorAll("[data-live]")) {
      const fresh = made.querySelector(`[data-live="${CSS.escape(part.dataset.live)}"]`);
      if (fresh) morph(part, fresh);
    }
    const clock = document.querySelector("#live time");
    const now = made.querySelector("#live time");
    if (clock && now) clock.replaceWith(document.adoptNode(now));
  } catch { /* the stream says that the server is away */ } finally {
    last = Date.now();
    loading = false;
    tellLive();
  }
}

const asksToSignIn = (answer) => answer.redirected && new URL(answer.url).pathname.endsWith("/login");

// The session has ended. What somebody types or has selected stays: sent, it is kept beside the form that signs in.
function signedOut() {
  if (held()) { out = true; tellLive(); } else location.reload();
}

function listen() {
  if (!document.querySelector("#live")) return;
  const often = () => 1000 * (document.querySelector("[data-every]")?.dataset.every ?? 15); // seconds: what changes without an event
  setInterval(() => { if (wanted || Date.now() - last > often()) load(); tellLive(); }, 1000);
  if (document.body.hasAttribute("data-poll")) { tellLive(); return; }
  connect();
  tellLive();
}

function connect() {
  stream = new EventSource(document.body.dataset.events);
  stream.addEventListener("status", () => { since = undefined; load(); });
  stream.addEventListener("open", () => { since = undefined; out = false; tellLive(); });
  stream.addEventListener("trouble", () => { since ??= new Date().toTimeString().slice(0, 8); tellLive(); }); // the store is away
  stream.addEventListener("error", () => {
    since ??= new Date().toTimeString().slice(0, 8);
    tellLive();
    if (stream.readyState === 2) setTimeout(connectAgain, 5000);
  });
}

// The browser tries again by itself, unless it was answered with an error.
async function connectAgain() {
  const answer = await fetch(location.href).catch(() => null);
  if (answer && asksToSignIn(answer)) signedOut();
  connect();
}

document.addEventListener("visibilitychange", () => { tellLive(); if (!document.hidden && wanted) load(); });

// ---------------------------------------------------------------------------------------------- keys

// One key, one act; never while somebody types, and never an act without its preview.
let going = false;
document.addEventListener("keydown", (event) => {
  if (document.querySelector("dialog[open]")) return; // its keys are the browser's own
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input:not([type=checkbox]), select, textarea")) return;
  if (going) {
    going = false;
    document.querySelector(`[data-go="${CSS.escape(event.key)}"]`)?.click();
    return;
  }
  const rows = [...document.querySelectorAll("[data-row]")];
  const at = rows.findIndex((row) => row.classList.contains("cur"));
  const move = (to) => {
    if (!rows[to]) return;
    rows[at]?.classList.remove("cur");
    rows[to].classList.add("cur");
    rows[to].scrollIntoView({ block: "nearest" });
  };
  const open = () => rows[at]?.querySelector("a")?.click();
  const keys = {
    "/": () => document.querySelector("#q")?.focus(),
    "?": () => document.getElementById("help")?.showModal(),
    g: () => { going = true; },
    j: () => move(at + 1),
    k: () => move(at - 1),
    x: () => rows[at]?.querySelector("input")?.click(),
    o: open,
    r: () => (rows[at]?.querySelector("[data-key=r]") ?? document.querySelector("[data-key=r]"))?.click(),
    p: () => (rows[at]?.querySelector("[data-key=p]") ?? document.querySelector("[data-key=p]"))?.click(),
    Escape: () => {
      for (const box of document.querySelectorAll(".c-pick input:checked")) box.click();
      document.querySelector("[data-close]")?.click();
    },
  };
  if (event.key === "Enter" && at >= 0 && !event.target.matches("a, button, summary, input")) keys.Enter = open;
  if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
});

tellTimes(document);
document.querySelector(".tabs [aria-current]")?.scrollIntoView({ inline: "center", block: "nearest" });
listen();
