// The words of the page's language. A page in another language sets COURSE_WORDS = {English: its own} before this
// script (i18n/zh/words.json is the source); a notebook sets none, and what is not there stays English.
// tests/i18n reads the messages from the sources: each is one literal in double quotes.

/** The names in braces of a message; the types hold its callers to them. */
type Names<M extends string> = M extends `${string}{${infer Name}}${infer Rest}` ? Name | Names<Rest> : never;
type Given<M extends string> = [Names<M>] extends [never] ? [] : [fields: Record<Names<M>, string | number>];

/** A message in the page's language, with the values of its fields, which may stand in another order there. */
export function say<M extends string>(message: M, ...[fields]: Given<M>): string {
  const words = (globalThis as { COURSE_WORDS?: Record<string, string> }).COURSE_WORDS;
  const values = fields as Record<string, string | number> | undefined, template: string = words?.[message] ?? message;
  return values ? template.replace(/\{(\w+)\}/g, (_, name: string) => String(values[name])) : template;
}
/** Two sentences in a row: Chinese puts no space between them. */
export const join = (first: string, then: string) => first && then ? say("{first} {then}", { first, then }) : first + then;
/** Names in a row. */
export const listed = (names: string[]) => names.length ? names.reduce((names, name) => say("{names}, {name}", { names, name })) : "";
