import "./styles/base.css";
import { render } from "preact";
import { App } from "./app";
import { startLoading } from "./shell/pages";
import { followTheme } from "./shell/theme";

followTheme();
startLoading(location.pathname, location.search);
const root = document.getElementById("app");
if (root) {
  render(<App />, root);
}
