// What is wrong with the page that is shown, a sentence each; its value is a list.
(async () => {
  await Promise.all([...document.images].map((image) => image.decode().catch(() => null)));
  const problems = [];
  const root = document.documentElement;
  if (root.scrollWidth > innerWidth) {
    problems.push(`the page is ${root.scrollWidth} wide in a window of ${innerWidth}`);
  }
  for (const image of document.images) {
    const scale = image.getBoundingClientRect().width / image.naturalWidth;
    if (!image.naturalWidth) problems.push(`a picture did not load: ${image.alt}`);
    // Their text has 13 pixels.
    else if (scale < 0.6) problems.push(`a picture is too small to be read (${scale.toFixed(2)}): ${image.alt}`);
  }

  const color = (text) => {
    const numbers = text.match(/^rgba?\((.*)\)$/)[1].split(/[\s,/]+/).map(Number);
    return { rgb: numbers.slice(0, 3), alpha: numbers[3] ?? 1 };
  };
  const over = (front, behind) => front.rgb.map((value, i) => front.alpha * value + (1 - front.alpha) * behind[i]);
  const background = (element) => {
    const own = color(getComputedStyle(element).backgroundColor);
    if (own.alpha === 1) return own.rgb;
    if (!element.parentElement) throw new Error("the page does not say its background");
    return over(own, background(element.parentElement));
  };
  // WCAG 2.2, relative luminance and contrast ratio.
  const luminance = (rgb) => {
    const [r, g, b] = rgb.map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (a, b) => {
    const [low, high] = [luminance(a), luminance(b)].sort((x, y) => x - y);
    return (high + 0.05) / (low + 0.05);
  };
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let seen = 0;
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    const text = texts.currentNode.data.trim();
    if (!text || !element.checkVisibility()) continue;
    seen += 1;
    const style = getComputedStyle(element);
    const behind = background(element);
    const ratio = contrast(over(color(style.color), behind), behind);
    if (ratio < 4.5) problems.push(`contrast ${ratio.toFixed(2)}: ${text}`);
    if (parseFloat(style.fontSize) < 12) problems.push(`text of ${style.fontSize}: ${text}`);
  }
  if (!seen) problems.push("no text is visible");
  return problems;
})()
