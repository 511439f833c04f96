import { shownName } from "@/text/shown_name";

/** A name that a user chose. It neither reorders nor hides text, its own or what stands beside it. */
export function Name({ text, title }: { text: string; title?: string }) {
  return <bdi title={title === undefined ? undefined : shownName(title)}>{shownName(text)}</bdi>;
}
