//! The functions of templates.

use super::LARGEST_OUTPUT;
use super::data::Platform;
use gotmpl::{FuncMap, Result, Template, TemplateError, Value, ValueFunc};
use http::Uri;
use std::sync::Arc;

/// The name of the function that reads a field. No template can write it.
pub(super) const FIELD: &str = "field of";
/// The name of the function that takes what is to be printed. No template can write it.
pub(super) const PRINTED: &str = "is printed";

/// Functions of Go that make texts of texts.
const GROWING: [&str; 6] = ["print", "printf", "println", "html", "js", "urlquery"];

pub(super) fn all(platform: &Platform) -> FuncMap {
    let kind: Arc<str> = platform.kind.as_str().into();
    let own: [(&str, ValueFunc); 7] = [
        (FIELD, Arc::new(field)),
        (PRINTED, Arc::new(printed)),
        ("skip", Arc::new(skip)),
        ("join", Arc::new(join)),
        ("urlHost", Arc::new(url_host)),
        ("urlPort", Arc::new(url_port)),
        ("platformType", Arc::new(move |_| Ok(Value::String(kind.clone())))),
    ];
    let own = own.into_iter().map(|(name, function)| (name.to_owned(), function));
    own.chain(GROWING.map(|name| (name.to_owned(), bounded(name)))).collect()
}

fn fail<T>(detail: impl Into<String>) -> Result<T> {
    Err(TemplateError::Exec(detail.into()))
}

/// A field, or one of a field, and so on. Its name is taken as it is written, or else in any case.
fn field(args: &[Value]) -> Result<Value> {
    let Some((mut value, names)) = args.split_first() else { return fail("there is nothing to read a field of") };
    for name in names.iter().filter_map(Value::as_str) {
        let entries = match value {
            Value::Map(entries) => entries,
            Value::Nil => return fail(format!("there is no {name} in null")),
            Value::String(_) => return fail(format!("there is no {name} in text")),
            other => return fail(format!("there is no {name} in {}", other.type_name())),
        };
        let mut similar = entries.iter().filter(|(key, _)| key.eq_ignore_ascii_case(name));
        value = match (entries.get(name), similar.next(), similar.next()) {
            (Some(value), _, _) | (None, Some((_, value)), None) => value,
            (None, Some(_), Some(_)) => return fail(format!("{name} stands for several fields: write it as it is")),
            (None, None, _) => return fail(format!("there is no field {name}")),
        };
    }
    Ok(value.clone())
}

/// Go prints `<no value>`.
fn printed(args: &[Value]) -> Result<Value> {
    match args {
        [Value::Nil] | [] => fail("prints null: ask with `if` whether there is a value"),
        [value, ..] => Ok(value.clone()),
    }
}

/// Leaves a field for what reads the result, such as a server of Ignition configs.
fn skip(args: &[Value]) -> Result<Value> {
    let is_first = |c: char| c == '_' || c.is_ascii_lowercase();
    let is_key = |key: &str| key.starts_with(is_first) && key.chars().all(|c| c == '_' || c.is_ascii_alphanumeric());
    match args {
        [Value::String(key)] if is_key(key) => Ok(Value::String(format!("{{{{.{key}}}}}").into())),
        _ => fail("skip: takes a key of letters, digits and `_`, which begins with a lower-case letter or `_`"),
    }
}

fn join(args: &[Value]) -> Result<Value> {
    let [Value::List(list), Value::String(separator)] = args else { return wrong_join() };
    let Some(texts) = list.iter().map(Value::as_str).collect::<Option<Vec<_>>>() else { return wrong_join() };
    if size(args) + texts.len() * separator.len() > LARGEST_OUTPUT {
        return fail(too_long("join"));
    }
    Ok(Value::String(texts.join(separator).into()))
}

fn wrong_join<T>() -> Result<T> {
    fail("join: takes a list of texts and a separator")
}

fn url(function: &str, args: &[Value]) -> Result<Uri> {
    let parsed = match args {
        [Value::String(text)] => text.parse().ok(),
        _ => None,
    };
    parsed
        .filter(|url: &Uri| url.scheme().is_some() && url.host().is_some())
        .ok_or(TemplateError::Exec(format!("{function}: must be a URL with scheme and host")))
}

fn url_host(args: &[Value]) -> Result<Value> {
    let url = url("urlHost", args)?;
    let host = url.host().unwrap_or_default();
    let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    Ok(Value::String(inner.unwrap_or(host).into()))
}

fn url_port(args: &[Value]) -> Result<Value> {
    let url = url("urlPort", args)?;
    match (url.port(), url.scheme_str()) {
        (Some(port), _) => Ok(Value::String(port.as_str().into())),
        (None, Some("https")) => Ok(Value::String("443".into())),
        (None, Some("http")) => Ok(Value::String("80".into())),
        (None, _) => fail("urlPort: no port is written, and only http and https have one of their own"),
    }
}

/// A function of Go whose arguments and whose result are not too long. A text that is doubled again and again would fill the
/// memory.
fn bounded(name: &'static str) -> ValueFunc {
    Arc::new(move |args| {
        if size(args) > LARGEST_OUTPUT {
            return fail(too_long(name));
        }
        if name == "printf" {
            check_format(args.first())?;
        }
        // A built-in function is reached by a template alone.
        let arguments: Vec<_> = (0..args.len()).map(|index| format!("(index . {index})")).collect();
        let call = Template::new("").parse(&format!("{{{{{name} {}}}}}", arguments.join(" ")))?;
        let text = call.execute_to_string(&Value::List(args.into()))?;
        if text.len() > LARGEST_OUTPUT { fail(too_long(name)) } else { Ok(Value::String(text.into())) }
    })
}

fn check_format(format: Option<&Value>) -> Result<()> {
    // The engine would show another value.
    let Some(Value::String(format)) = format else { return fail("printf: its first argument must be a text") };
    if format.contains('*') {
        return fail("printf: a width or precision that is an argument is not supported");
    }
    let mut digits = format.split(|c: char| !c.is_ascii_digit());
    if digits.any(|run| run.len() > 3) {
        return fail("printf: a width or precision of more than three digits is not supported");
    }
    Ok(())
}

fn too_long(function: &str) -> String {
    format!("{function}: more than {LARGEST_OUTPUT} bytes")
}

/// About how many bytes values have when they are printed.
fn size(values: &[Value]) -> usize {
    let of = |value: &Value| match value {
        Value::String(text) => text.len(),
        Value::List(list) => size(list),
        Value::Map(entries) => entries.iter().map(|(key, value)| key.len() + size(std::slice::from_ref(value))).sum(),
        _ => 8,
    };
    values.iter().map(|value| of(value) + 1).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(function: fn(&[Value]) -> Result<Value>, args: &[&str]) -> Option<String> {
        let args: Vec<_> = args.iter().map(|text| Value::String((*text).into())).collect();
        function(&args).ok().and_then(|value| value.as_str().map(str::to_owned))
    }

    #[test]
    fn urls_have_hosts_and_ports() {
        for (url, host, port) in [
            ("https://api-int.example.com:6443", Some("api-int.example.com"), Some("6443")),
            ("https://api.example.com/path?q=1", Some("api.example.com"), Some("443")),
            ("http://user@api.example.com", Some("api.example.com"), Some("80")),
            ("https://[fd00::1]:6443", Some("fd00::1"), Some("6443")),
            ("ftp://files.example.com", Some("files.example.com"), None),
            ("api.example.com:6443", None, None),
            ("/path", None, None),
            ("not a url", None, None),
            ("", None, None),
        ] {
            assert_eq!(call(url_host, &[url]).as_deref(), host, "{url}");
            assert_eq!(call(url_port, &[url]).as_deref(), port, "{url}");
        }
        assert_eq!(call(url_host, &["https://a", "https://b"]), None);
    }
}
