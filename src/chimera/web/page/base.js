"use strict";
// Shared by all pages: elements, numbers, tables, the token, and the loop that requests data. Texts become text nodes only.
const SVG = "http://www.w3.org/2000/svg";
const at = id => document.getElementById(id);

function make(name, text, parent, kind) {
  const element = document.createElement(name);
  if (text !== undefined && text !== null) element.textContent = text;
  if (kind) element.className = kind;
  if (parent) parent.append(element);
  return element;
}

function draw(name, attributes, parent) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (parent) parent.append(element);
  return element;
}

function mark(color, parent) {
  const square = make("span", undefined, parent, "mark");
  square.style.background = color;
  return square;
}

function head(table, names, kinds = {}) {
  // empties the table; a name may be hidden text
  table.replaceChildren();
  const row = make("tr", undefined, make("thead", undefined, table)),
    cells = {};
  for (const name of names) {
    cells[name] = make("th", name, row, kinds[name]);
    cells[name].scope = "col";
  }
  return [make("tbody", undefined, table), cells];
}

function emptyRow(body, text, columns) {
  make("td", text, make("tr", undefined, body), "empty").colSpan = columns;
}

const showStatus = (text, bad) => {
  const line = at("status");
  if (line.textContent !== text) line.textContent = text;
  line.className = bad ? "bad" : "";
};

const shown = number => {
  if (!Number.isFinite(number)) return "–";
  const size = Math.abs(number);
  if (number === 0 || (size >= 1e-3 && size < 1e5)) return String(+number.toPrecision(4));
  return size >= 1e5 && size < 1e9 ? Math.round(number).toLocaleString("en") : number.toExponential(2);
};
const whole = number => (Number.isFinite(number) ? Math.round(number).toLocaleString("en") : "–");
const count = (number, noun) => `${whole(number)} ${noun}${number === 1 ? "" : "s"}`;
const bytes = number => {
  if (!Number.isFinite(number)) return "–";
  let unit = 0;
  while (Math.abs(number) >= 999.5 && unit < 5) {
    number /= 1000;
    unit++;
  }
  return `${unit ? +number.toPrecision(3) : Math.round(number)} ${["B", "kB", "MB", "GB", "TB", "PB"][unit]}`;
};
const duration = seconds => {
  if (!Number.isFinite(seconds)) return "–";
  const size = Math.abs(seconds);
  if (size === 0) return "0 s";
  if (size < 1e-3) return `${+(1e6 * seconds).toPrecision(4)} µs`;
  if (size < 1) return `${+(1e3 * seconds).toPrecision(4)} ms`;
  return size < 600 ? `${+seconds.toPrecision(4)} s` : span(seconds);
};
const span = seconds => {
  const s = Math.max(0, seconds);
  return s < 120
    ? `${Math.floor(s)} s`
    : s < 7200
      ? `${Math.floor(s / 60)} min`
      : s < 172800
        ? `${Math.floor(s / 3600)} h`
        : `${Math.floor(s / 86400)} d`;
};

// The token is in the fragment of the address on the terminal, which browsers do not send. The page removes it from the address bar.
if (location.hash.startsWith("#token=")) {
  sessionStorage.setItem("token", decodeURIComponent(location.hash.slice(7)));
  history.replaceState(null, "", location.pathname);
}
let token = sessionStorage.getItem("token") || "";

class Locked extends Error {}

async function request(path) {
  // raises Locked if the token is missing or wrong
  const answer = await fetch(path, { headers: token ? { Authorization: "Bearer " + token } : {}, cache: "no-store" });
  at("lock").hidden = answer.status !== 401;
  if (answer.status === 401) throw new Locked();
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer;
}

const pause = milliseconds => new Promise(go => setTimeout(go, milliseconds));

function keep(once, milliseconds, whose, absent) {
  // calls `once` repeatedly; ends when it returns false
  const stay = async () => {
    for (;;) {
      try {
        if ((await once()) === false) return;
      } catch (error) {
        if (error instanceof Locked) {
          showStatus(token ? `this is not the token of ${whose}` : `${whose} asks for its token`, true);
          return;
        }
        if (!(error instanceof TypeError) && !/: \d+$/.test(error.message)) console.warn(error.message);
        showStatus(absent, true);
      }
      await pause(milliseconds);
    }
  };
  const open = () => {
    token = at("token").value;
    sessionStorage.setItem("token", token);
    stay();
  };
  at("open").onclick = open;
  at("token").onkeydown = event => {
    if (event.key === "Enter") open();
  };
  stay();
}
