//! Running a template of Go's `text/template`, with the crate `gotmpl`.
//!
//! A template is parsed by `gotmpl`, rewritten, and executed by `gotmpl`. The rewriting makes each access to fields a call of
//! [`functions::FIELD`], which knows names in any case and takes no missing one, and ends each printing action with
//! [`functions::PRINTED`], which takes no null.

use super::functions::{self, FIELD, PRINTED};
use super::platform::Platform;
use super::{LARGEST_OUTPUT, TemplateError};
use gotmpl::parse::{CommandNode, Expr, ListNode, Node, Parser, PipeNode, Pos, SmolStr};
use gotmpl::{FuncMap, Template, TemplateError as Failure, Value};
use std::fmt;
use std::mem;
use std::sync::Arc;

/// How many times the loops of a template may go round in all.
const MOST_ROUNDS: u64 = 10_000;
/// The name of the rewritten template. No other template can call it, as there are no others.
const MAIN: &str = "main";

/// Runs templates over the same data.
pub(super) struct Engine {
    data: Value,
    functions: FuncMap,
}

impl Engine {
    pub(super) fn new(data: Value, platform: &Arc<Platform>) -> Self {
        Self { data, functions: functions::all(platform) }
    }

    /// What the template of a file renders to.
    pub(super) fn run(&self, file: &str, text: &str) -> Result<String, TemplateError> {
        let fail = |line, detail: String| TemplateError { file: file.to_owned(), line, detail };
        let tree = parse(text).map_err(|(line, detail)| fail(line, detail))?;
        self.execute(&tree)
            .map_err(|failure| fail(Some(self.failing_line(&tree, text.lines().count())), explain(failure)))
    }

    fn execute(&self, tree: &ListNode) -> Result<String, Failure> {
        let template = Template::new(MAIN).funcs(self.functions.clone()).max_range_iters(MOST_ROUNDS);
        let mut output = Output(String::new());
        template.add_parse_tree(MAIN, tree.clone()).execute_template_fmt(&mut output, MAIN, &self.data)?;
        Ok(output.0)
    }

    /// The first line up to which a failing template fails: `gotmpl` does not report where.
    fn failing_line(&self, tree: &ListNode, lines: usize) -> usize {
        let (mut succeeds, mut fails) = (0, lines.max(1));
        while fails - succeeds > 1 {
            let middle = usize::midpoint(succeeds, fails);
            let mut beginning = tree.clone();
            truncate(&mut beginning, middle);
            if self.execute(&beginning).is_ok() {
                succeeds = middle;
            } else {
                fails = middle;
            }
        }
        fails
    }
}

/// Takes what fits.
struct Output(String);

impl fmt::Write for Output {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > LARGEST_OUTPUT {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

/// Why a template fails. Values are not shown: they may be secret.
fn explain(failure: Failure) -> String {
    match failure {
        Failure::Exec(detail) => detail,
        Failure::Write => format!("renders to more than {LARGEST_OUTPUT} bytes"),
        Failure::RangeIterLimit => format!("its loops go round more than {MOST_ROUNDS} times"),
        other => other.to_string(),
    }
}

type Parsed<T> = Result<T, (Option<usize>, String)>;

/// Parses and rewrites a template.
fn parse(text: &str) -> Parsed<ListNode> {
    let parsed = Parser::new(text, "{{", "}}").and_then(Parser::parse);
    let (mut tree, defined) = parsed.map_err(|failure| match failure {
        Failure::Parse { line, message, .. } | Failure::Lex { line, message, .. } => {
            (Some(line).filter(|line| *line > 0), message)
        }
        other => (None, other.to_string()),
    })?;
    if let Some(defined) = defined.first() {
        return Err(calls_another(defined.pos));
    }
    rewrite(&mut tree)?;
    Ok(tree)
}

/// Templates that call one another can take exponential time.
fn calls_another(at: Pos) -> (Option<usize>, String) {
    (Some(at.line), "define, block and template are not supported: each file is one template".to_owned())
}

fn rewrite(list: &mut ListNode) -> Parsed<()> {
    for node in &mut list.nodes {
        match node {
            Node::List(list) => rewrite(list)?,
            Node::Action(action) => {
                rewrite_pipe(&mut action.pipe);
                if action.pipe.decl.is_empty() {
                    let args = vec![Expr::Identifier(action.pos, SmolStr::new(PRINTED))];
                    action.pipe.commands.push(CommandNode { pos: action.pos, args });
                }
            }
            Node::If(branch) | Node::With(branch) | Node::Range(branch) => {
                rewrite_pipe(&mut branch.pipe);
                rewrite(&mut branch.body)?;
                branch.else_body.as_mut().map_or(Ok(()), rewrite)?;
            }
            Node::Template(call) => return Err(calls_another(call.pos)),
            Node::Define(defined) => return Err(calls_another(defined.pos)),
            Node::Text(_) | Node::Break(_) | Node::Continue(_) => {}
        }
    }
    Ok(())
}

fn rewrite_pipe(pipe: &mut PipeNode) {
    pipe.commands.iter_mut().flat_map(|command| &mut command.args).for_each(rewrite_expression);
}

fn rewrite_expression(expression: &mut Expr) {
    let (at, of, names) = match expression {
        Expr::Field(at, names) => (*at, Expr::Dot(*at), mem::take(names)),
        Expr::Variable(at, variable, names) if !names.is_empty() => {
            (*at, Expr::Variable(*at, variable.clone(), vec![]), mem::take(names))
        }
        Expr::Chain(at, inner, names) => {
            rewrite_expression(inner);
            (*at, mem::replace(inner.as_mut(), Expr::Nil(*at)), mem::take(names))
        }
        Expr::Pipe(_, pipe) => return rewrite_pipe(pipe),
        _ => return,
    };
    let names = names.iter().map(|name| Expr::String(at, name.as_str().into()));
    let args = [Expr::Identifier(at, SmolStr::new(FIELD)), of].into_iter().chain(names).collect();
    let commands = vec![CommandNode { pos: at, args }];
    *expression = Expr::Pipe(at, PipeNode { pos: at, decl: vec![], commands, is_assign: false });
}

/// Leaves what begins in the first lines.
fn truncate(list: &mut ListNode, lines: usize) {
    list.nodes.retain(|node| line(node) <= lines);
    for node in &mut list.nodes {
        match node {
            Node::List(list) => truncate(list, lines),
            Node::If(branch) | Node::With(branch) | Node::Range(branch) => {
                truncate(&mut branch.body, lines);
                branch.else_body.iter_mut().for_each(|list| truncate(list, lines));
            }
            _ => {}
        }
    }
}

fn line(node: &Node) -> usize {
    match node {
        Node::List(it) => it.pos.line,
        Node::Text(it) => it.pos.line,
        Node::Action(it) => it.pos.line,
        Node::If(it) | Node::With(it) | Node::Range(it) => it.pos.line,
        Node::Template(it) => it.pos.line,
        Node::Define(it) => it.pos.line,
        Node::Break(at) | Node::Continue(at) => at.line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn engine() -> Engine {
        let platform = Arc::new(Platform { kind: "AWS".to_owned(), ..Platform::default() });
        let infra =
            json!({"status": {"apiServerInternalURI": "https://api-int.example.com:6443", "zones": ["a", "b"]}});
        let images = json!({"crio-Image": "q.io/crio", "two": "q.io/two"});
        let fields = json!({"clusterDNSIP": "10.0.0.10", "infra": infra, "images": images, "proxy": null, "secret": "hush",
            "both": {"A": 1, "a": 2}, "mixed": {"Ab": 1, "aB": 2}});
        Engine::new(super::super::typed::value(fields), &platform)
    }

    fn run(text: &str) -> Result<String, String> {
        engine().run("f", text).map_err(|error| error.to_string())
    }

    #[test]
    fn templates_are_gos_with_fields_in_any_case() {
        for (template, text) in [
            ("dns: {{.clusterDNSIP}}", "dns: 10.0.0.10"),
            ("{{.ClusterDNSIP}}{{.clusterdnsip}}{{$.ClusterDnsIp}}", "10.0.0.1010.0.0.1010.0.0.10"),
            ("{{with .Infra.Status}}{{urlHost .APIServerInternalURI}}{{end}}", "api-int.example.com"),
            ("{{$s := .Infra.Status}}{{$s.ApiServerInternalURI | urlPort}}", "6443"),
            ("{{(index .infra \"status\").ZONES}}", "[a b]"),
            ("{{range $name, $image := .images}}{{$name}}={{$image}};{{end}}", "crio-Image=q.io/crio;two=q.io/two;"),
            ("{{index .Images \"crio-Image\"}}", "q.io/crio"),
            ("{{join .infra.status.zones \",\"}}", "a,b"),
            ("{{if .proxy}}p{{else}}none{{end}}", "none"),
            ("{{if eq platformType \"AWS\"}}a{{end}}{{platformType .}}", "aAWS"),
            ("{{skip \"hostname\"}}", "{{.hostname}}"),
            ("{{range 3}}{{.}}{{end}} {{- /* no */ -}} {{printf \"%03d\" 7}}", "012007"),
            ("{{print 1 2 \"a\" (len .images)}}", "1 2a2"),
            ("{{.both.A}}{{.both.a}}", "12"),
            ("{{or .proxy \"direct\"}}", "direct"),
        ] {
            assert_eq!(run(template).as_deref(), Ok(text), "{template}");
        }
    }

    #[test]
    fn what_fails_has_its_file_and_line_and_shows_no_value() {
        for (template, error) in [
            ("a\n{{.clusterDNS}}", "f:2: there is no field clusterDNS"),
            ("a\n\n{{if true}}\n{{.infra.status.none}}\n{{end}}\n", "f:4: there is no field none"),
            ("{{.proxy.httpProxy}}", "f:1: there is no httpProxy in null"),
            ("a\n{{.proxy}}", "f:2: prints null"),
            ("{{index .images \"x\"}}", "f:1: prints null"),
            ("{{.secret.x}}", "f:1: there is no x in text"),
            ("{{.mixed.ab}}", "f:1: ab stands for several fields"),
            ("\n{{range .infra.status.zones}}\n  {{.}}\n  {{urlPort .}}\n{{end}}", "f:4: urlPort: must be a URL"),
            ("{{urlHost .secret}}", "f:1: urlHost: must be a URL"),
            ("{{join .secret \",\"}}", "f:1: join: takes a list of texts and a separator"),
            ("{{skip \"2two\"}}", "f:1: skip: "),
            ("{{printf . \"%s\"}}", "f:1: printf: its first argument must be a text"),
            ("{{printf .infra \"%s\"}}", "f:1: printf: its first argument must be a text"),
            ("{{printf}}", "f:1: printf: its first argument must be a text"),
            ("\n{{nothing .}}", "f:2: undefined function: nothing"),
            ("\n{{$x}}", "f:2: undefined variable"),
            ("a\n{{if}}", "f:2: "),
            ("a\n\n{{.x", "f:3: unclosed action"),
            ("\n{{define \"a\"}}{{end}}", "f:2: define, block and template are not supported"),
            ("\n{{block \"a\" .}}{{end}}", "f:2: define, block and template are not supported"),
            ("{{if true}}{{template \"main\"}}{{end}}", "f:1: define, block and template are not supported"),
        ] {
            let failure = run(template).unwrap_err();
            assert!(failure.starts_with(error), "{template}: {failure}");
            assert!(!failure.contains("hush"), "{failure}");
        }
    }

    #[test]
    fn each_template_ends_within_its_limits() {
        let doubled = "{{$x = print $x $x}}".repeat(60);
        let nested = format!("{}{}", "{{if true}}".repeat(1000), "{{end}}".repeat(1000));
        for (template, error) in [
            ("{{range 1000000000000}}{{end}}", "its loops go round more than 10000 times"),
            ("{{range 200}}{{range 200}}{{end}}{{end}}", "its loops go round more than 10000 times"),
            ("{{range 9000}}{{printf \"%999d\" 1}}{{end}}", "renders to more than 524288 bytes"),
            (&format!("{{{{$x := \"12345678\"}}}}{doubled}"), "print: more than 524288 bytes"),
            ("{{printf \"%1000000000d\" 1}}", "printf: a width or precision of more than three digits"),
            ("{{printf \"%*d\" 1000000000 1}}", "printf: a width or precision that is an argument"),
            (&nested, "template nesting depth exceeded"),
            (&"(".repeat(10_000), ""),
            (&format!("{{{{{}1{}}}}}", "(".repeat(100_000), ")".repeat(100_000)), "template nesting depth exceeded"),
        ] {
            match run(template) {
                Ok(text) => assert!(error.is_empty(), "{text}"),
                Err(failure) => assert!(!error.is_empty() && failure.contains(error), "{failure}"),
            }
        }
    }
}
