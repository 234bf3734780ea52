//! The limits for the size and the depth of objects.

use serde_json::{Value, json};

use super::{
    objects::{Kind, with},
    probe::{Probe, Request},
};
use nodewright_e2e_lab::control_plane::testing::TestResult;

pub(super) async fn sizes(probe: &mut Probe) -> TestResult {
    let all = probe.all(Kind::MachineClass);
    for (what, kilobytes) in [("1 MB", 1_000), ("1.6 MB", 1_600), ("2.9 MB", 2_900), ("3.3 MB", 3_300)] {
        let class = with(probe.object(Kind::MachineClass, "large"), "/providerSpec/x", "x".repeat(kilobytes * 1_000));
        let said = probe.silently(&Request::post(&all, &class)).await?;
        // The reported size of a message is not exact to the byte, so the digits are removed.
        let message: String = said.text("/message").chars().filter(|it| !it.is_ascii_digit()).collect();
        let found = json!({"code": said.code, "reason": said.body["reason"], "message": message});
        probe.note(&format!("an object of {what}"), &found);
        probe.silently(&Request::delete(probe.path(Kind::MachineClass, "large"), &Value::Null)).await?;
    }
    Ok(())
}

pub(super) async fn depths(probe: &mut Probe) -> TestResult {
    let all = probe.all(Kind::MachineClass);
    for depth in [100, 200, 20_000] {
        let class = with(probe.object(Kind::MachineClass, &format!("deep-{depth}")), "/providerSpec/x", "DEEP");
        let deep = format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
        let request =
            Request::post(&all, &Value::Null).raw("application/json", class.to_string().replace("\"DEEP\"", &deep));
        let said = probe.silently(&request).await?;
        let found = json!({"code": said.code, "reason": said.body["reason"]});
        probe.note(&format!("an object {depth} deep"), &found);
    }
    Ok(())
}
