"use strict";
// Line charts with axes. A series is {name, color, points: [[x, y], ...]}; points are sorted by x.
const SERIES = [0, 1, 2, 3, 4, 5].map(i => `var(--series${i})`);

function ticks(low, high, most) {
  const step = (high - low) / most;
  if (!(step > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(step));
  const size = [1, 2, 5, 10].map(times => times * power).find(each => each >= step);
  const found = [];
  for (let i = Math.ceil(low / size - 1e-9); i * size <= high + 1e-9 * size; i++) found.push(i * size);
  return found;
}

function thinned(points, most) {
  // keeps the lowest and highest point of each of most / 2 parts
  if (points.length <= most) return points;
  const kept = [],
    part = points.length / (most / 2);
  for (let i = 0; i < most / 2; i++) {
    const slice = points.slice(Math.floor(i * part), Math.floor((i + 1) * part));
    let low = 0,
      high = 0;
    slice.forEach((point, j) => {
      if (point[1] < slice[low][1]) low = j;
      if (point[1] > slice[high][1]) high = j;
    });
    kept.push(...[...new Set([low, high])].sort((a, b) => a - b).map(j => slice[j]));
  }
  if (kept[kept.length - 1] !== points[points.length - 1]) kept.push(points[points.length - 1]);
  return kept;
}

function limits(values) {
  let low = Infinity,
    high = -Infinity;
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return [low, high];
}

function lineChart(parent, title, series, { label = shown, xLabel = shown, xName = "", width = 380, height = 190 } = {}) {
  const lines = series
    .map(each => ({
      ...each,
      points: thinned(
        each.points.filter(p => Math.abs(p[0]) < 1e300 && Math.abs(p[1]) < 1e300),
        600,
      ),
    }))
    .filter(each => each.points.length);
  const figure = make("figure", undefined, parent, "chart"),
    caption = make("figcaption", undefined, figure);
  make("span", title, caption);
  if (!lines.length) {
    make("p", "no values yet", figure, "soft");
    return figure;
  }
  const last = make("span", undefined, caption, "values");
  const values = x => {
    last.replaceChildren();
    for (const line of lines) {
      const point =
        x === undefined
          ? line.points[line.points.length - 1]
          : line.points.reduce((a, b) => (Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a));
      const text = make("strong", label(point[1]), last);
      text.style.color = line.color;
      text.title = line.name;
    }
  };
  values();
  let [low, high] = limits(lines.flatMap(line => line.points.map(p => p[1])));
  let [first, end] = limits(lines.flatMap(line => line.points.map(p => p[0])));
  if (high === low) {
    const room = Math.abs(high) / 10 || 1;
    low -= room;
    high += room;
  }
  if (end === first) end = first + 1;
  const left = 52,
    right = 10,
    top = 8,
    bottom = 30,
    w = width - left - right,
    h = height - top - bottom;
  const px = x => left + (w * (x - first)) / (end - first),
    py = y => top + h - (h * (y - low)) / (high - low);
  const picture = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: "0" }, figure);
  picture.setAttribute(
    "aria-label",
    `${title}: ` +
      lines
        .map(line => `${line.name} from ${label(line.points[0][1])} to ${label(line.points[line.points.length - 1][1])}`)
        .join("; "),
  );
  for (const y of ticks(low, high, 6)) {
    draw("line", { x1: left, x2: width - right, y1: py(y), y2: py(y), class: "rule" }, picture);
    draw("text", { x: left - 6, y: py(y) + 4, "text-anchor": "end" }, picture).textContent = label(+y.toPrecision(6));
  }
  draw("line", { x1: left, x2: width - right, y1: top + h, y2: top + h, class: "axis" }, picture);
  for (const x of ticks(first, end, 5)) {
    const name = xLabel(+x.toPrecision(6)),
      half = 3.3 * name.length; // about half of its width
    draw("line", { x1: px(x), x2: px(x), y1: top + h, y2: top + h + 4, class: "axis" }, picture);
    draw("text", { x: Math.min(px(x), width - half), y: height - 14, "text-anchor": "middle" }, picture).textContent = name;
  }
  draw("text", { x: left + w / 2, y: height - 1, "text-anchor": "middle" }, picture).textContent = xName;
  for (const line of lines) {
    const path = draw(
      "polyline",
      { points: line.points.map(p => `${px(p[0]).toFixed(1)},${py(p[1]).toFixed(1)}`).join(" ") },
      picture,
    );
    path.style.stroke = line.color;
    if (line.points.length === 1)
      draw("circle", { cx: px(line.points[0][0]), cy: py(line.points[0][1]), r: 2.5 }, picture).style.fill = line.color;
  }
  const cursor = draw("line", { y1: top, y2: top + h, class: "axis", visibility: "hidden" }, picture);
  const point = x => {
    cursor.setAttribute("x1", px(x));
    cursor.setAttribute("x2", px(x));
    cursor.setAttribute("visibility", "visible");
    values(x);
  };
  const leave = () => {
    cursor.setAttribute("visibility", "hidden");
    values();
  };
  picture.onpointermove = event => {
    const box = picture.getBoundingClientRect(),
      x = first + ((end - first) * (((event.clientX - box.left) / box.width) * width - left)) / w;
    point(Math.min(end, Math.max(first, x)));
  };
  picture.onpointerleave = leave;
  picture.onblur = leave;
  let place = end;
  picture.onkeydown = event => {
    const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!way) return;
    event.preventDefault();
    place = Math.min(end, Math.max(first, place + (way * (end - first)) / 50));
    point(place);
  };
  return figure;
}
