/** Lets xterm.js style its parts under the content policy of the page, which forbids `<style>` elements and `style`
 *  attributes. Styles that a script sets on sheets and on elements are allowed: what the terminal writes goes there. */
import type { Terminal } from "@xterm/xterm";

// the terminal draws colours outside of its palette by this attribute
HTMLSpanElement.prototype.setAttribute = function (this: HTMLSpanElement, name: string, value: string) {
  if (name === "style") {
    this.style.cssText = value;
  } else {
    Element.prototype.setAttribute.call(this, name, value);
  }
};

type Create = (name: string) => HTMLElement;

/** Opens a terminal in a place, where it stays. */
export function openTerminal(terminal: Terminal, place: HTMLElement): void {
  const page: { createElement: Create } = document;
  const create = page.createElement.bind(document);
  page.createElement = (name) => (name === "style" ? styleElement(create) : create(name));
  try {
    terminal.open(place); // it makes all its style elements here
  } finally {
    Reflect.deleteProperty(document, "createElement");
  }
}

/** Returns an element in the place of a `<style>` element; its text is a sheet of the document. */
function styleElement(create: Create): HTMLElement {
  const element = create("span");
  element.hidden = true;
  const sheet = new CSSStyleSheet();
  document.adoptedStyleSheets.push(sheet);
  Object.defineProperty(element, "textContent", { set: (text: string) => sheet.replaceSync(text) });
  element.remove = () => {
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((each) => each !== sheet);
    HTMLElement.prototype.remove.call(element);
  };
  return element;
}
