from headrace.core.messages import PrefillRequest, RegionDescriptor
from headrace.engine.prefill_job import Job
from headrace.kvcache.block_table import BlockTable
from headrace.kvcache.pool import BlockPool
from headrace.kvcache.prefix import PrefixHit
from tests.support.transfer_layouts import split_layouts


def test_what_is_missing_is_all_but_the_last_token_and_what_has_kv() -> None:
    layout = split_layouts(1)[0]
    target = RegionDescriptor(
        transport="fake",
        name="d",
        doorbell="d",
        rank=0,
        generation=1,
        num_bytes=layout.num_bytes,
        layout=layout,
    )
    request = PrefillRequest(
        session_id="s",
        imm=0,
        reply_to="d",
        token_ids=[5] * 9,
        start=0,
        block_ids=[0],
        target=target,
    )
    job = Job(request=request, order=0, arrived_s=0.0)
    assert (job.num_prompt_tokens, job.num_missing_tokens) == (8, 8)
    pool = BlockPool(4, 16, pinned_fraction=0.5, prefix_cache=False)
    job.table = BlockTable.open(pool, PrefixHit([], 0), 8)
    assert job.table is not None
    job.table.advance(5)
    assert job.num_missing_tokens == 3
