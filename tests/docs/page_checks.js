// Checks of a page in a browser; each returns a list of what it found wrong, as text.

(() => {
  const shown = (element) =>
    element.checkVisibility({ opacityProperty: true, visibilityProperty: true, contentVisibilityAuto: true });
  const name = (element) => {
    const classes = [...element.classList].slice(0, 2).map((each) => "." + each).join("");
    return element.localName + (element.id ? "#" + element.id : "") + classes;
  };

  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const known = new Map();
  const rgba = (color) => {
    if (!known.has(color)) {
      canvas.clearRect(0, 0, 1, 1);
      canvas.fillStyle = color;
      canvas.fillRect(0, 0, 1, 1);
      const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
      known.set(color, [r, g, b, a / 255]);
    }
    return known.get(color);
  };
  const over = (top, below) => top.slice(0, 3).map((value, i) => value * top[3] + below[i] * (1 - top[3]));
  const luminance = (color) => {
    const [r, g, b] = color.map((value) => {
      const part = value / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const WHITE = { color: [255, 255, 255], opacity: 1 };
  const groundOf = (element, grounds) => { // the color behind the text of an element, and the element's opacity
    if (!element) return WHITE;
    if (!grounds.has(element)) {
      const below = groundOf(element.parentElement, grounds);
      const style = getComputedStyle(element);
      const color = over(rgba(style.backgroundColor), below.color);
      grounds.set(element, { color, opacity: below.opacity * Number(style.opacity) });
    }
    return grounds.get(element);
  };
  const contrastOf = (element, grounds) => {
    const below = groundOf(element, grounds);
    const color = rgba(getComputedStyle(element).color);
    const text = over([...color.slice(0, 3), color[3] * below.opacity], below.color);
    const [light, dark] = [luminance(text), luminance(below.color)].sort((a, b) => b - a);
    return (light + 0.05) / (dark + 0.05);
  };

  window.pageChecks = {
    contrast(least) {
      document.querySelectorAll("details").forEach((each) => (each.open = true));
      const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
      const elements = new Set();
      while (texts.nextNode()) {
        const element = texts.currentNode.parentElement;
        if (/\S/.test(texts.currentNode.data) && !/^(script|style|noscript|template)$/.test(element.localName)) elements.add(element);
      }
      const grounds = new Map();
      return [...elements].filter(shown).flatMap((element) => {
        const contrast = contrastOf(element, grounds);
        return contrast < least ? [`${name(element)} ${contrast.toFixed(2)}: ${element.textContent.trim().slice(0, 40)}`] : [];
      });
    },

    overflow() {
      const root = document.documentElement;
      if (root.scrollWidth <= root.clientWidth) return [];
      const wide = [...document.querySelectorAll("article *")].filter(
        (each) => shown(each) && each.getBoundingClientRect().right > root.clientWidth + 1,
      );
      return [`${root.scrollWidth} px wide: ${wide.slice(0, 5).map(name).join(", ")}`];
    },

    structure() {
      const problems = [];
      if (!document.documentElement.lang) problems.push("the page has no language");
      if (!document.title.trim()) problems.push("the page has no title");
      let level = 0;
      const headings = [...document.querySelectorAll("h1, h2, h3, h4, h5, h6")].filter(shown);
      for (const heading of headings) {
        const next = Number(heading.localName[1]);
        if (next > level + 1) problems.push(`h${next} after h${level}: ${heading.textContent}`);
        level = next;
      }
      const first = headings.filter((each) => each.localName === "h1");
      if (first.length !== 1) problems.push(`${first.length} headings h1`);
      for (const image of document.querySelectorAll("img")) {
        const text = (image.alt || "").trim();
        if (!text || /\.(png|svg|jpe?g|gif)$/.test(text)) problems.push(`no text for the image ${image.getAttribute("src")}`);
        if (!image.complete || !image.naturalWidth) problems.push(`the image ${image.getAttribute("src")} does not load`);
      }
      for (const control of document.querySelectorAll("a[href], button, input, select")) {
        const labels = [...(control.labels || [])].map((each) => each.textContent);
        const given = [control.ariaLabel, control.title, control.placeholder, control.textContent, ...labels];
        const pictured = [...control.querySelectorAll("img, title")].map((each) => each.alt || each.textContent);
        const named = [...given, ...pictured].some((each) => each && each.trim());
        if (control.type !== "hidden" && shown(control) && !named) problems.push(`no label for ${name(control)}`);
      }
      return problems;
    },

    links: () => [...document.querySelectorAll("a[href]")].map((each) => each.href),
    ids: () => [...document.querySelectorAll("[id]")].map((each) => each.id),
  };
})();
