import "./styles/base.css";
import { render } from "preact";
import { App } from "./app";
import { followTheme } from "./shell/theme";

followTheme();
const root = document.getElementById("app");
if (root) {
  render(<App />, root);
}
