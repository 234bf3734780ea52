//! Which volumes are the provider's.

use nodewright_api::RawJson;
use serde_json::json;

use crate::context::{Checked, Context, Finding, ensure, skipped};

pub(super) async fn volume_ids(context: &Context<'_>) -> Checked {
    if !context.calls.driver.knows_volumes() {
        return skipped("the driver has no volume_ids");
    }
    let Some((spec, id)) = context.fixture.volume() else {
        return skipped("the fixture has no volume of the provider");
    };
    let others = [
        json!({"csi": {"driver": "csi.elsewhere.example.com", "volumeHandle": id}}),
        json!({"nfs": {"server": "files.example.com", "path": "/"}}),
        json!({}),
    ];
    let [csi, nfs, empty] = others.map(|spec| RawJson::from(&spec));
    let own = Some(id);
    let table = [
        (vec![], vec![]),
        (vec![spec.clone()], vec![own.clone()]),
        (vec![csi.clone()], vec![None]),
        (vec![csi, spec.clone(), nfs, empty, spec], vec![None, own.clone(), None, None, own]),
    ];
    for (volumes, expected) in table {
        let asked: Vec<String> = volumes.iter().map(|spec| spec.text().to_owned()).collect();
        let answer = context.calls.volume_ids(volumes).await;
        let ids = answer.map_err(|error| Finding::Broken(format!("volume_ids of {asked:?} fails: {error}")))?;
        ensure(ids == expected, || format!("volume_ids of {asked:?} should be {expected:?}, and is {ids:?}"))?;
    }
    Ok(())
}
