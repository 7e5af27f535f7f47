"""The options of the index' RocksDB database: small ones, under which no write is ever delayed."""

from typing import Final

from rocksdict import BlockBasedIndexType, BlockBasedOptions, Cache, DBCompressionType, Options

WRITE_BUFFER_BYTES: Final = 8 * 1024 * 1024
WRITE_BUFFERS_MAX: Final = 3
STOP_FILES: Final = 36
"""Number of files at level 0 at which RocksDB stops writes. It delays none before, which would hold the loop."""
PENDING_COMPACTION_BYTES_MAX: Final = 256 << 30
"""Estimate of the bytes to compact at which RocksDB stops writes, which an index never has."""
BLOCK_CACHE_BYTES: Final = 12 * 1024 * 1024
METADATA_BLOCK_BYTES: Final = 4096
OPEN_FILES_MAX: Final = 128
BACKGROUND_JOBS_MAX: Final = 2
BLOOM_BITS_PER_KEY: Final = 10


def rocksdb_options() -> Options:
    """Return small options: the index shares the memory of an idle node (120 MiB) with Python and the HTTP server."""
    table = BlockBasedOptions()
    table.set_block_cache(Cache(BLOCK_CACHE_BYTES))
    table.set_bloom_filter(BLOOM_BITS_PER_KEY, False)
    table.set_cache_index_and_filter_blocks(True)
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    # Index and filter are partitioned into pages: the filter of a large file is larger than a shard of the cache, is
    # never kept there, and would be read as a whole for every single key.
    table.set_index_type(BlockBasedIndexType.two_level_index_search())
    table.set_partition_filters(True)
    table.set_metadata_block_size(METADATA_BLOCK_BYTES)
    table.set_pin_top_level_index_and_filter(True)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(table)
    options.set_write_buffer_size(WRITE_BUFFER_BYTES)
    options.set_max_write_buffer_number(WRITE_BUFFERS_MAX)
    # Where writes would be delayed they are stopped: a delayed one holds the loop, a stopped one comes back undone.
    options.set_level_zero_stop_writes_trigger(STOP_FILES)
    options.set_level_zero_slowdown_writes_trigger(STOP_FILES)
    options.set_hard_pending_compaction_bytes_limit(PENDING_COMPACTION_BYTES_MAX)
    options.set_soft_pending_compaction_bytes_limit(PENDING_COMPACTION_BYTES_MAX)
    options.set_max_background_jobs(BACKGROUND_JOBS_MAX)
    options.set_max_open_files(OPEN_FILES_MAX)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(4 * 1024 * 1024)
    return options
