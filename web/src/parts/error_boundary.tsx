import { Component, type ComponentChildren } from "preact";
import { Button } from "./button";
import { ErrorNotice } from "./notices";

/** Shows a page that failed as an error with what to do, in place of nothing, until the user is elsewhere. */
export class ErrorBoundary extends Component<
  { location: string; children: ComponentChildren },
  { error: unknown }
> {
  override state: { error: unknown } = { error: null };

  static override getDerivedStateFromError(error: unknown) {
    return { error };
  }

  override componentDidUpdate(before: { location: string }) {
    if (before.location !== this.props.location && this.state.error !== null) {
      this.setState({ error: null });
    }
  }

  override render() {
    if (this.state.error === null) {
      return this.props.children;
    }
    return (
      <div>
        <ErrorNotice error={this.state.error} />
        <p>
          <Button onClick={() => window.location.reload()}>Load the page again</Button>
        </p>
      </div>
    );
  }
}
